package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/external-backend/operator/devcluster"
)

func TestMain(m *testing.M) { devcluster.Main(m) }

func openNetwork(t *testing.T) {
	t.Helper()
	n, err := devcluster.OpenNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// command runs a command of the program until stop is called, and sends its output to lines.
func command(t *testing.T, f func(ctx context.Context, out io.Writer) (int, error)) (lines <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	said := make(chan string, 100)
	go func() {
		defer close(said)
		for scanner := bufio.NewScanner(r); scanner.Scan(); {
			said <- scanner.Text()
		}
	}()
	ended := make(chan error, 1)
	go func() {
		code, err := f(ctx, w)
		if code != 0 {
			err = errors.Join(err, errors.New("exit status"))
		}
		w.Close()
		ended <- err
	}()
	return said, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// await reads lines until one contains the text.
func await(t *testing.T, lines <-chan string, text string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	var said []string
	for {
		select {
		case line, ok := <-lines:
			said = append(said, line)
			if strings.Contains(line, text) {
				return
			}
			if !ok {
				t.Fatalf("it ended without the line %q: %q", text, said)
			}
		case <-deadline:
			t.Fatalf("there is no line with %q in %q", text, said)
		}
	}
}

// A machine answers as its flags say. When it has ended, its name and addresses are free again.
func TestMachineServesAsItsFlagsSay(t *testing.T) {
	openNetwork(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	for _, flag := range []struct {
		name   string
		status int
	}{{"--http", http.StatusOK}, {"--failing", http.StatusServiceUnavailable}} {
		lines, stop := command(t, func(ctx context.Context, out io.Writer) (int, error) {
			return machine(ctx, []string{flag.name, "8080", "--tcp", "5432", "web-1", "203.0.113.10", "2001:db8:113::10"}, out)
		})
		await(t, lines, "port 8080")
		await(t, lines, "port 5432")
		for _, ip := range []string{"203.0.113.10", "2001:db8:113::10"} {
			resp, err := client.Get("http://" + net.JoinHostPort(ip, "8080") + "/healthz")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != flag.status || string(body) != "web-1\n" {
				t.Errorf("%s at %s: %d %q, %v", flag.name, ip, resp.StatusCode, body, err)
			}
			await(t, lines, "GET /healthz from ")

			conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "5432"), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			conn.Close()
			if err != nil || string(answer) != "web-1\n" {
				t.Errorf("--tcp at %s: %q, %v", ip, answer, err)
			}
		}
		stop()
	}
}

// Arguments without a server, a name, an address or a valid port are an error.
func TestWrongMachineArgumentsAreRefused(t *testing.T) {
	for _, args := range []string{
		"", "web-1 203.0.113.10", "--http 8080 web-1", "--http 65536 web-1 203.0.113.10",
		"--http x web-1 203.0.113.10", "--udp 1 web-1 203.0.113.10",
	} {
		if servers, name, addresses, err := parseMachine(strings.Fields(args)); err == nil {
			t.Errorf("machine %s is accepted: %v on %s at %v", args, servers, name, addresses)
		}
	}
}

// A zone's records are served as the file has them, also after mistakes in the file.
func TestZoneFollowsFile(t *testing.T) {
	openNetwork(t)
	file := filepath.Join(t.TempDir(), "example.com.zone")
	write := func(records string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(records), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(devcluster.UpstreamDNS.String(), "53"))
	}}
	expect := func(want string) {
		t.Helper()
		if got, err := resolver.LookupHost(t.Context(), "db.example.com."); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%v, %v; want %s", got, err, want)
		}
	}

	write("db A 203.0.113.10")
	lines, stop := command(t, func(ctx context.Context, out io.Writer) (int, error) {
		return zone(ctx, "example.com", file, out)
	})
	defer stop()
	await(t, lines, "example.com is served")
	expect("203.0.113.10")

	write("db A not-an-address")
	await(t, lines, "example.com is not served")
	expect("203.0.113.10")

	write("db A 203.0.113.11")
	await(t, lines, "example.com is served")
	expect("203.0.113.11")
}

// In the cluster's shell, which has no network, `make install` works even if Go has not built or
// downloaded anything before.
func TestMakeInstallNeedsNoNetwork(t *testing.T) {
	c, err := devcluster.Start(t.Context(), devcluster.Options{WithoutProxy: true, WithoutDNS: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	path, err := commandPath(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", c.Kubeconfig)
	t.Setenv("GOCACHE", t.TempDir())
	t.Setenv("GOMODCACHE", t.TempDir())

	for _, args := range [][]string{
		{"make", "-C", "../../..", "install"},
		{"kubectl", "wait", "--for=condition=Established", "--timeout=30s", "crd", "externalbackends.external-backend.io"},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
}
