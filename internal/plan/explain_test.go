package plan_test

import (
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/explain"
	"github.com/external-backend/operator/internal/plan"
)

// causes are the links that may be a cause while Service and slices are as planned. The links after
// them only follow.
var causes = []string{
	explain.LinkSpec, explain.LinkName, explain.LinkPolicy, explain.LinkFamily, explain.LinkDuplicate,
	explain.LinkLimit, explain.LinkVerdict, explain.LinkTier, explain.LinkOverride,
}

// TestEveryStepOfScenariosIsExplained explains every target and every published endpoint after
// every step. Who is ready gets traffic; who gets none has a cause, not only its consequences.
func TestEveryStepOfScenariosIsExplained(t *testing.T) {
	chains := 0
	plan.PlayScenarios(t, func(t *testing.T, s plan.PlayedStep) {
		if !s.Planned {
			return
		}
		b := s.Backend.DeepCopy()
		b.Status = s.WroteStatus
		in := explain.Input{Backend: b, Service: s.WroteService, Slices: s.WroteSlices, Now: s.Now}

		ready := map[string]bool{}
		subjects := []string{}
		for _, e := range endpointslice.Published(s.WroteSlices).Endpoints() {
			ready[e.Addr.String()] = ready[e.Addr.String()] || e.Ready
			subjects = append(subjects, e.Addr.String())
		}
		for i := range b.Spec.Targets {
			subjects = append(subjects, b.Spec.Targets[i].Name)
		}
		for _, what := range subjects {
			chains++
			chain, err := explain.Explain(in, what)
			if err != nil {
				t.Errorf("%s, %s: %v", s.Name, what, err)
				continue
			}
			switch {
			case ready[what] && chain.GetsTraffic != explain.Yes && countAt(s.WroteSlices, what) == 1:
				t.Errorf("%s: %s is ready and gets no traffic:\n%s", s.Name, what, chain.Text())
			case chain.GetsTraffic == explain.No && (chain.Cause < 0 || !slices.Contains(causes, chain.Links[chain.Cause].ID)):
				t.Errorf("%s: %s has no cause:\n%s", s.Name, what, chain.Text())
			}
		}
	})
	if chains < 500 {
		t.Errorf("only %d chains were made", chains)
	}
}

// countAt returns how many endpoints are published at an address.
func countAt(list []*discoveryv1.EndpointSlice, address string) int {
	n := 0
	for _, e := range endpointslice.Published(list).Endpoints() {
		if e.Addr.String() == address {
			n++
		}
	}
	return n
}
