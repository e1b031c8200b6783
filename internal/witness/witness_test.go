package witness

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
)

var backend = types.NamespacedName{Namespace: "shop", Name: "db"}

// replica is a server that answers, with what a test says about its network.
type replica struct {
	peer        Peer
	certificate tls.Certificate
	server      *Server
	dials       atomic.Int32

	mu    sync.Mutex
	peers []Peer
}

func (r *replica) know(peers ...Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peers = peers
}

func (r *replica) known() []Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Peer(nil), r.peers...)
}

// newReplica returns a replica that is not started.
func newReplica(t *testing.T, name string) *replica {
	t.Helper()
	certificate, fingerprint, err := NewCertificate()
	if err != nil {
		t.Fatal(err)
	}
	return &replica{
		certificate: certificate, peer: Peer{Name: name, Fingerprint: fingerprint, Address: freePort(t)},
	}
}

func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return netip.MustParseAddrPort(l.Addr().String())
}

// serve starts the server of r. What it reaches is at target.
func (r *replica) serve(t *testing.T, target netip.AddrPort, refuse error) {
	t.Helper()
	check := &probe.Check{
		TCP: &probe.TCPSocket{Expect: "hello"}, Period: time.Second, Timeout: 200 * time.Millisecond,
		Confirm: 50 * time.Millisecond, SuccessThreshold: 1, FailureThreshold: 2,
	}
	r.server = NewServer(ServerOptions{
		Address: r.peer.Address.String(), Certificate: r.certificate, Peers: r.known, Log: logr.Discard(),
		Subject: func(_ context.Context, _ types.NamespacedName, generation int64, ids []probe.ID) (
			*probe.Check, []probe.Endpoint, error,
		) {
			if refuse != nil || generation != 7 {
				return nil, nil, errors.Join(refuse, fmt.Errorf("generation %d", generation))
			}
			var endpoints []probe.Endpoint
			for _, id := range ids {
				endpoints = append(endpoints, probe.Endpoint{ID: id, Dial: target})
			}
			return check, endpoints, nil
		},
		Permit: func(types.NamespacedName, netip.AddrPort) error { r.dials.Add(1); return nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := r.server.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
}

// waitOpen waits until the port of r is open, or closed.
func (r *replica) waitOpen(t *testing.T, open bool) {
	t.Helper()
	r.server.Changed()
	for deadline := time.Now().Add(30 * time.Second); ; {
		c, err := net.DialTimeout("tcp", r.peer.Address.String(), time.Second)
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) == open {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the port of %s is open: %t, want %t", r.peer.Name, err == nil, open)
		}
		time.Sleep(10 * time.Millisecond) // a bounded poll
	}
}

// target is a server that says something, or nothing.
func target(t *testing.T, says string) netip.AddrPort {
	t.Helper()
	var silent atomic.Bool
	silent.Store(says == "")
	return changing(t, &silent)
}

// changing is a server that says hello, except while it is silent.
func changing(t *testing.T, silent *atomic.Bool) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if !silent.Load() {
					_, _ = io.WriteString(c, "hello")
				}
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

func endpoint(i int) probe.ID {
	return probe.ID{Target: fmt.Sprint("t", i), Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), Port: 5432}
}

// ask asks the peers of asker about one endpoint, and returns the last opinions.
func ask(t *testing.T, asker *replica, count int) probe.Opinions {
	t.Helper()
	return startPanel(t, asker, count)()
}

// startPanel starts a panel. The result asks the peers of asker about one endpoint, in a new
// doubt, and returns the last opinions.
func startPanel(t *testing.T, asker *replica, count int) func() probe.Opinions {
	t.Helper()
	heard := make(chan probe.Opinions, 1000)
	panel := NewPanel(PanelOptions{
		Count: count, Certificate: asker.certificate, Peers: asker.known, Log: logr.Discard(),
		Generation: func(types.NamespacedName) (int64, bool) { return 7, true },
		Hear:       func(_ types.NamespacedName, _ probe.ID, o probe.Opinions) { heard <- o },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := panel.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return func() probe.Opinions {
		q := probe.Question{Owner: backend, ID: endpoint(1), First: true, Wait: 20 * time.Second}
		if !panel.Ask([]probe.Question{q}) {
			return probe.Opinions{}
		}
		for last := (probe.Opinions{}); ; {
			select {
			case last = <-heard:
				if last.Pending == 0 {
					return last
				}
			case <-time.After(time.Minute):
				t.Fatalf("no final opinion came; the last is %+v", last)
			}
		}
	}
}

// In a new doubt about the same endpoint, what a witness has found before counts no more.
func TestNewDoubtAsksAnew(t *testing.T) {
	asker, witness := newReplica(t, "asker"), newReplica(t, "witness")
	var silent atomic.Bool
	witness.know(asker.peer)
	witness.serve(t, changing(t, &silent), nil)
	witness.waitOpen(t, true)
	asker.know(witness.peer)
	again := startPanel(t, asker, 1)
	for _, want := range []probe.Opinions{{Healthy: 1}, {Unhealthy: 1}, {Healthy: 1}} {
		silent.Store(want.Unhealthy > 0)
		if got := again(); got != want {
			t.Errorf("the opinions are %+v, want %+v", got, want)
		}
	}
}

// Witnesses that reach an endpoint say Healthy, and those for which it is silent Unhealthy. One
// that refuses, is gone or hangs has no vote.
func TestWitnessesSayWhatTheyReach(t *testing.T) {
	reachable, silent := target(t, "hello"), target(t, "")
	hangs := target(t, "")
	for name, test := range map[string]struct {
		targets []netip.AddrPort // of the witnesses that answer
		refuses int
		dead    int
		hang    int
		want    probe.Opinions
	}{
		"all reach it":       {targets: []netip.AddrPort{reachable, reachable}, want: probe.Opinions{Healthy: 2}},
		"none reaches it":    {targets: []netip.AddrPort{silent, silent}, want: probe.Opinions{Unhealthy: 2}},
		"they differ":        {targets: []netip.AddrPort{reachable, silent}, want: probe.Opinions{Healthy: 1, Unhealthy: 1}},
		"one refuses":        {targets: []netip.AddrPort{silent}, refuses: 1, want: probe.Opinions{Unhealthy: 1}},
		"one is gone":        {targets: []netip.AddrPort{reachable}, dead: 1, want: probe.Opinions{Healthy: 1}},
		"one hangs":          {targets: []netip.AddrPort{reachable}, hang: 1, want: probe.Opinions{Healthy: 1}},
		"all are gone":       {dead: 2},
		"there is no other":  {},
		"one of two replica": {targets: []netip.AddrPort{silent}, want: probe.Opinions{Unhealthy: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			asker := newReplica(t, "asker")
			var peers []Peer
			add := func(to netip.AddrPort, refuse error) {
				r := newReplica(t, fmt.Sprint("witness-", len(peers)))
				r.know(asker.peer)
				r.serve(t, to, refuse)
				r.waitOpen(t, true)
				peers = append(peers, r.peer)
			}
			for _, to := range test.targets {
				add(to, nil)
			}
			for range test.refuses {
				add(reachable, errors.New("policy"))
			}
			for range test.dead {
				peers = append(peers, newReplica(t, fmt.Sprint("dead-", len(peers))).peer)
			}
			for range test.hang {
				r := newReplica(t, "hangs")
				r.peer.Address = hangs
				peers = append(peers, r.peer)
			}
			asker.know(peers...)
			if got := ask(t, asker, 2); got != test.want {
				t.Errorf("the opinions are %+v, want %+v", got, test.want)
			}
		})
	}
}

// post sends a request as a replica with a certificate.
func post(client *http.Client, to Peer, method, body string) (int, error) {
	r, err := http.NewRequest(method, "https://"+to.Address.String()+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, answer.Body.Close()
}

func clientOf(certificates ...tls.Certificate) *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		MaxConnsPerHost: 1,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certificates},
	}}
}

func questions(n int) string {
	message := request{Version: version}
	for i := range n {
		message.Questions = append(message.Questions,
			newQuestion(probe.Question{Owner: backend, ID: endpoint(i % 200)}, 7))
	}
	text, _ := json.Marshal(message)
	return string(text)
}

// Strangers are refused in the handshake, replicas whose Lease has ended at their next request,
// and requests that are too many, too large or of another version politely. Nothing is dialled
// for any of them, and the server answers afterwards.
func TestServerRefusesStrangersAndFloods(t *testing.T) {
	witness, asker, stranger := newReplica(t, "witness"), newReplica(t, "asker"), newReplica(t, "stranger")
	witness.know(asker.peer)
	witness.serve(t, target(t, "hello"), nil)
	witness.waitOpen(t, true)

	for name, client := range map[string]*http.Client{
		"without a certificate": clientOf(), "with a stranger's certificate": clientOf(stranger.certificate),
	} {
		if status, err := post(client, witness.peer, http.MethodPost, questions(1)); err == nil {
			t.Errorf("a request %s is answered with status %d", name, status)
		}
	}
	old := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, // an old client
		Certificates: []tls.Certificate{asker.certificate},
	}}}
	if status, err := post(old, witness.peer, http.MethodPost, questions(1)); err == nil {
		t.Errorf("TLS 1.2 is answered with status %d", status)
	}

	member := clientOf(asker.certificate)
	for name, test := range map[string]struct {
		method, body string
		want         int
	}{
		"another method":      {http.MethodGet, "", http.StatusNotFound},
		"no JSON":             {http.MethodPost, "hello", http.StatusBadRequest},
		"another version":     {http.MethodPost, `{"version": 2, "questions": []}`, http.StatusBadRequest},
		"an unknown field":    {http.MethodPost, `{"version": 1, "credentials": "x"}`, http.StatusBadRequest},
		"too many questions":  {http.MethodPost, questions(maxQuestions + 1), http.StatusBadRequest},
		"too large a request": {http.MethodPost, strings.Repeat(" ", maxBody+1) + questions(1), http.StatusBadRequest},
		"another generation": {
			http.MethodPost, strings.ReplaceAll(questions(1), `"generation":7`, `"generation":8`), http.StatusOK,
		},
	} {
		if status, err := post(member, witness.peer, test.method, test.body); err != nil || status != test.want {
			t.Errorf("%s: status %d, %v; want %d", name, status, err, test.want)
		}
	}
	if n := witness.dials.Load(); n > 0 {
		t.Errorf("%d endpoints were dialled for requests that are refused", n)
	}

	limited := 0
	for range 10 * maxBurst {
		status, err := post(member, witness.peer, http.MethodPost, questions(0))
		if err != nil {
			t.Fatal(err)
		}
		if status == http.StatusTooManyRequests {
			limited++
		}
	}
	if limited == 0 {
		t.Error("a flood of requests is answered")
	}

	witness.know(stranger.peer) // the Lease of the asker has ended
	status, err := post(member, witness.peer, http.MethodPost, questions(1))
	if err != nil || status != http.StatusForbidden {
		t.Errorf("over an open connection, a replica that is gone gets status %d, %v", status, err)
	}
	witness.know(asker.peer)
	if status, err := post(clientOf(asker.certificate), witness.peer, http.MethodPost, questions(1)); err != nil ||
		status != http.StatusOK && status != http.StatusTooManyRequests {
		t.Errorf("after all that, a replica gets status %d, %v", status, err)
	}
}

// A panel talks to nobody who shows another certificate than the Lease names.
func TestPanelRefusesImpostors(t *testing.T) {
	asker, witness, impostor := newReplica(t, "asker"), newReplica(t, "witness"), newReplica(t, "impostor")
	impostor.know(asker.peer)
	impostor.serve(t, target(t, "hello"), nil)
	impostor.waitOpen(t, true)
	witness.peer.Address = impostor.peer.Address
	asker.know(witness.peer)
	if got := ask(t, asker, 1); got != (probe.Opinions{}) {
		t.Errorf("the opinions of an impostor count: %+v", got)
	}
}

// The port is open only while there are other replicas.
func TestPortIsOpenForOthersOnly(t *testing.T) {
	r, other := newReplica(t, "alone"), newReplica(t, "other")
	r.serve(t, target(t, "hello"), nil)
	r.waitOpen(t, false)
	r.know(other.peer)
	r.waitOpen(t, true)
	r.know()
	r.waitOpen(t, false)
}

// FuzzReadRequest reads anything without a panic, and what it accepts is within the bounds.
func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(questions(2)))
	f.Add([]byte(`{"version":1,"questions":[{"address":"[::1]:1"}],"hold":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := readRequest(bytes.NewReader(data))
		if err == nil && (len(r.Questions) > maxQuestions || r.Version != version) {
			t.Errorf("%d questions of version %d are accepted", len(r.Questions), r.Version)
		}
	})
}
