package dataplane

import (
	"fmt"
	"time"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// pair is two machines that serve the same.
type pair struct {
	a, b   *lab.Machine
	sa, sb *lab.Server
	// sicken makes b fail its checks, or pass them again. b continues to serve.
	sicken func(sick bool)
}

func newPair(h *harness.Test, network string, port int) pair {
	h.T.Helper()
	p := pair{a: h.Machine("a"), b: h.Machine("b")}
	p.sa, p.sb = h.Serve(p.a, network, port), h.Serve(p.b, network, port)
	if network == "http" {
		p.sicken = p.sb.SetSick
		return p
	}
	// Checks use another port.
	h.Serve(p.a, "tcp", 9000)
	checked := h.Serve(p.b, "tcp", 9000)
	p.sicken = func(sick bool) {
		h.T.Helper()
		if checked.Stop(); !sick {
			if err := checked.Start(); err != nil {
				h.T.Fatal(err)
			}
		}
	}
	return p
}

// flow opens a UDP flow that leads to one machine. The function that it returns waits until the
// flow leads to the other machine. kube-proxy moves flows after it has changed its rules; until
// then, a new flow with the same port may count as the old one.
func flow(h *harness.Test, addr string, from, to *lab.Machine) (waitMoved func()) {
	h.T.Helper()
	for range enough {
		conn, err := h.Node().Dial(h.T.Context(), "udp", addr)
		if err != nil {
			h.T.Fatal(err)
		}
		h.T.Cleanup(func() { conn.Close() })
		who := func() string {
			packet := make([]byte, 256)
			if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
				h.T.Fatal(err)
			}
			if _, err := conn.Write([]byte("who is there")); err != nil {
				return err.Error()
			}
			n, err := conn.Read(packet)
			if err != nil {
				return err.Error()
			}
			return string(packet[:n])
		}
		if who() != from.Name() {
			continue
		}
		return func() {
			h.T.Helper()
			h.Eventually("a UDP flow to move to "+to.Name(), func() error {
				if is := who(); is != to.Name() {
					return fmt.Errorf("it leads to %s", is)
				}
				return nil
			})
		}
	}
	h.T.Fatalf("no flow to %s leads to %s", addr, from.Name())
	return nil
}
