package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var owner1 = types.NamespacedName{Namespace: "shop", Name: "db"}

// running starts an engine that ends with the test, and returns a channel that Notify feeds.
func running(t *testing.T, options Options) (*Engine, <-chan types.NamespacedName) {
	t.Helper()
	notified := make(chan types.NamespacedName, 1000)
	options.Notify = func(owner types.NamespacedName) { notified <- owner }
	e := New(options)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e, notified
}

func quick(c Check) *Check {
	c.Period, c.Confirm, c.Timeout = 200*time.Millisecond, 20*time.Millisecond, time.Second
	c.SuccessThreshold, c.FailureThreshold = 1, 1
	return &c
}

func at(addr net.Addr) Endpoint {
	dial := netip.MustParseAddrPort(addr.String())
	return Endpoint{ID: ID{Target: "a", Addr: dial.Addr(), Port: dial.Port()}, Dial: dial}
}

func TestHealthyEndpointIsFound(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	defer server.Close()
	e, notified := running(t, Options{})
	for _, check := range []Check{{TCP: &TCPSocket{}}, {HTTP: &HTTPGet{}}} {
		e.Sync(owner1, quick(check), []Endpoint{at(server.Listener.Addr())})
		<-notified
		for id, state := range e.Snapshot(owner1) {
			if want := (State{Verdict: Healthy, Probed: true}); state != want {
				t.Errorf("%v: %v, want %v", id, state, want)
			}
		}
		e.Forget(owner1)
	}
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
