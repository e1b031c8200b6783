// Package probes probes real servers as Debian ships them: nginx and Redis.
package probes

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/test/harness/pki"
)

const (
	ms = time.Millisecond

	// serverName is the name in the servers' certificates.
	serverName = "db.example.com"
)

var owner = types.NamespacedName{Namespace: "shop", Name: "db"}

// watched is an engine that probes one endpoint.
type watched struct {
	t        *testing.T
	engine   *probe.Engine
	notified chan struct{}
	began    chan struct{} // one for each probe
}

// watch probes an address often, until the test ends. One success makes a verdict, or two failures
// in a row, because the server may be about to start.
func watch(t *testing.T, check probe.Check, port int) *watched {
	t.Helper()
	check.Period, check.SuccessThreshold, check.FailureThreshold = 50*ms, 1, 2
	if check.Confirm == 0 {
		check.Confirm = 20 * ms
	}
	if check.Timeout == 0 {
		check.Timeout = 20 * time.Second
	}
	w := &watched{t: t, notified: make(chan struct{}, 1), began: make(chan struct{}, 1000)}
	w.engine = probe.New(probe.Options{
		Notify: func(types.NamespacedName) {
			select {
			case w.notified <- struct{}{}:
			default: // one is enough
			}
		},
		Permit: func(types.NamespacedName, netip.AddrPort) error {
			select {
			case w.began <- struct{}{}:
			default: // no test counts that many
			}
			return nil
		},
	})
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
	id := probe.ID{Target: "t", Addr: at.Addr(), Port: at.Port()}
	w.engine.Sync(owner, &check, []probe.Endpoint{{ID: id, Dial: at, Host: serverName}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.engine.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

// becomes waits until the endpoint has this verdict and reason.
func (w *watched) becomes(verdict probe.Verdict, reason string) {
	w.t.Helper()
	over := time.After(time.Minute)
	for {
		state := w.engine.States(owner)[0]
		if state.Verdict == verdict && state.Reason == reason {
			return
		}
		select {
		case <-w.notified:
		case <-over:
			w.t.Fatalf("the endpoint is %v %s, and never %v %s", state.Verdict, state.Reason, verdict, reason)
		}
	}
}

// probes waits until n more probes have begun.
func (w *watched) probes(n int) {
	for len(w.began) > 0 {
		<-w.began
	}
	for range n {
		<-w.began
	}
}

// server is a process of a real server.
type server struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// run starts a server from a Debian package. The server runs until the test ends.
func run(t *testing.T, debian, name string, args ...string) *server {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
			t.Fatalf("%s is missing, install it with: apt-get install %s", name, debian)
		}
	}
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // the server has a descriptor of its own
	s := &server{cmd: exec.Command(path, args...), exited: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		_ = s.cmd.Wait() // an error does not matter
		close(s.exited)
	}()
	t.Cleanup(func() {
		s.kill()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s said:\n%s", name, text)
		}
	})
	return s
}

// signal sends a signal to the server and to every process that it has started.
func (s *server) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-s.cmd.Process.Pid, signal); err != nil {
		t.Fatal(err)
	}
}

// kill ends the server, if it still runs.
func (s *server) kill() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	<-s.exited
}

// freePorts returns ports that nobody listens on.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() // once all are chosen
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// certificates are the key pairs and the authority of the servers and clients of a test.
type certificates struct {
	*pki.Authority
	dir    string
	client pki.KeyPair
}

// newCertificates writes good, expired and other pairs into a directory, and the authority's
// certificate as ca.crt.
func newCertificates(t *testing.T) certificates {
	t.Helper()
	authority, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	c := certificates{Authority: authority, dir: t.TempDir()}
	var errs []error
	write := func(pair pki.KeyPair, err error, name string) {
		_, _, writeErr := pair.Write(c.dir, name)
		errs = append(errs, err, writeErr)
	}
	later := time.Now().Add(time.Hour)
	write(authority.KeyPair, nil, "ca")
	for name, names := range map[string]string{"good": serverName, "other": "other.example.com"} {
		pair, err := authority.Issue(later, names)
		write(pair, err, name)
	}
	expired, err := authority.Issue(time.Now().Add(-time.Minute), serverName)
	write(expired, err, "expired")
	if c.client, err = authority.Issue(later, "client.example.com"); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return c
}

// over returns a TLS that trusts the authority.
func (c certificates) over() *probe.TLS { return &probe.TLS{RootCAs: c.Pool()} }

// overWithClient returns a TLS that trusts the authority, with a certificate to show.
func (c certificates) overWithClient(t *testing.T) *probe.TLS {
	t.Helper()
	pair, err := c.client.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return &probe.TLS{RootCAs: c.Pool(), Certificate: &pair}
}
