package probe

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Witnesses are other replicas, which an Engine asks about endpoints that are silent for it.
type Witnesses interface {
	// Ask asks about endpoints. It does not block. The opinions come by Engine.Hear. It reports whether
	// there is anybody to ask.
	Ask(questions []Question) bool
}

// Question asks the witnesses about an endpoint that is silent.
type Question struct {
	Owner types.NamespacedName
	ID    ID
	// Silent is how long the endpoint has been silent.
	Silent time.Duration
	// Wait is how long the engine waits for the opinions. 0: it does not need them yet, and the
	// witnesses only begin to probe.
	Wait time.Duration
}

// Opinions are what the witnesses say about an endpoint. The three numbers together are how many
// were asked, except those that have not answered in time or refuse to.
type Opinions struct {
	Healthy, Unhealthy int
	// Pending is how many have not answered yet.
	Pending int
}
