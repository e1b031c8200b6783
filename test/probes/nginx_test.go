package probes

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/external-backend/operator/internal/probe"
)

// nginxConfig has a NAME for each value. Each line of a log has the number of a connection, and the
// number of a request on that connection.
const nginxConfig = `
daemon off;
user root; # another user may not read the files of the test
worker_processes 1;
error_log DIR/error.log warn;
pid DIR/pid;
events {}
http {
  client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi;
  uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi;
  log_format uses '$connection $connection_requests';
  access_log off;
  root DIR;
  location / { }
}
`

// nginx is a running server with these server blocks.
type nginx struct {
	*server
	dir string
}

// startNginx starts nginx with server blocks in which each NAME stands for a value, PORTn for the
// n-th port and DIR for a directory of its own.
func startNginx(t *testing.T, ports []int, blocks string, values map[string]any) nginx {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "large"), bytes.Repeat([]byte("x"), 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	pairs := []string{"  location / { }\n", blocks, "DIR", dir}
	for i, port := range ports {
		pairs = append(pairs, fmt.Sprintf("PORT%d", i), "127.0.0.1:"+strconv.Itoa(port))
	}
	for name, value := range values {
		pairs = append(pairs, name, fmt.Sprint(value))
	}
	config := filepath.Join(dir, "nginx.conf")
	text := nginxConfig
	for i := 0; i < len(pairs); i += 2 { // in this order, because the blocks have names too
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return nginx{run(t, "nginx", "nginx", "-p", dir, "-c", config), dir}
}

// uses reads from a log how many requests each connection carried, in the order of the connections.
func (n nginx) uses(t *testing.T, log string) []int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir, log))
	if err != nil {
		t.Fatal(err)
	}
	var uses []int
	for line := range strings.Lines(string(text)) {
		_, request, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.Atoi(request)
		if err != nil {
			t.Fatalf("the log says %q", line)
		}
		if number == 1 {
			uses = append(uses, 0)
		}
		uses[len(uses)-1] = number
	}
	return uses
}

func get(path string, expected ...probe.StatusRange) probe.Check {
	return probe.Check{HTTP: &probe.HTTPGet{Path: path, Headers: host(serverName), Expected: expected}}
}

// host returns a Host header.
func host(name string) []probe.Header { return []probe.Header{{Name: "Host", Value: name}} }

// within returns a check with another timeout.
func within(c probe.Check, timeout time.Duration) probe.Check {
	c.Timeout = timeout
	return c
}

// TestNginxGetsTheVerdictOfItsAnswers probes nginx with checks that it meets and checks that it
// fails, by the status, the body, the host and the protocol.
func TestNginxGetsTheVerdictOfItsAnswers(t *testing.T) {
	ports := freePorts(t, 3)
	startNginx(t, ports, `
  server {
    listen PORT0;
    server_name db.example.com;
    location = /ok { return 200 "ok"; }
    location = /empty { return 204; }
    location = /moved { return 301 http://127.0.0.1:1/forbidden; }
    location = /sick { return 503; }
    location = /hangs-up { return 444; }
    location = /slow { alias DIR/large; limit_rate 1; }
    location = /whole { alias DIR/large; }
    location = /zipped { alias DIR/large; gzip on; gzip_types *; }
    location = /odd-upstream { proxy_pass http://PORT2; }
  }
  server {
    listen PORT0 default_server;
    return 421;
  }
  server {
    listen PORT1 http2;
    return 200;
  }
  server {
    listen PORT2;
    keepalive_timeout 0;
    return 200 "ok";
  }`, nil)
	ok := probe.StatusRange{From: 200, To: 200}
	for _, test := range []struct {
		name    string
		port    int
		check   probe.Check
		verdict probe.Verdict
		reason  string
	}{
		{"200", 0, get("/ok"), probe.Healthy, ""},
		{"204", 0, get("/empty"), probe.Healthy, ""},
		{"a redirect, which is not followed", 0, get("/moved"), probe.Healthy, ""},
		{"a redirect that is not expected", 0, get("/moved", ok), probe.Unhealthy, probe.ReasonUnexpectedStatus},
		{"503", 0, get("/sick"), probe.Unhealthy, probe.ReasonUnexpectedStatus},
		{"503, which is expected", 0, get("/sick", probe.StatusRange{From: 503, To: 503}), probe.Healthy, ""},
		{"404", 0, get("/nowhere"), probe.Unhealthy, probe.ReasonUnexpectedStatus},
		{"a close without an answer", 0, get("/hangs-up"), probe.Unhealthy, probe.ReasonUnexpectedResponse},
		{"a body that drips", 0, within(get("/slow"), 300*ms), probe.Unhealthy, probe.ReasonTimeout},
		{"a megabyte", 0, get("/whole"), probe.Healthy, ""},
		{"a megabyte in chunks", 0, probe.Check{HTTP: &probe.HTTPGet{Path: "/zipped",
			Headers: []probe.Header{{Name: "Accept-Encoding", Value: "gzip"}}}}, probe.Healthy, ""},
		{"from an upstream that speaks HTTP/1.0", 0, get("/odd-upstream"), probe.Healthy, ""},
		{
			"another host", 0, probe.Check{HTTP: &probe.HTTPGet{Path: "/ok", Headers: host("x.example.com")}},
			probe.Unhealthy, probe.ReasonUnexpectedStatus,
		},
		{"HTTP/2 alone", 1, get("/"), probe.Unhealthy, probe.ReasonUnexpectedResponse},
		{
			"gRPC of a server that has none", 1, probe.Check{GRPC: &probe.GRPC{}}, probe.Unhealthy,
			probe.ReasonUnexpectedResponse,
		},
		{
			"gRPC of a server of HTTP/1.1", 0, probe.Check{GRPC: &probe.GRPC{}}, probe.Unhealthy,
			probe.ReasonUnexpectedResponse,
		},
		{"no keep-alive", 2, get("/"), probe.Healthy, ""},
		{
			"TLS where there is none", 0, probe.Check{HTTP: &probe.HTTPGet{}, TLS: &probe.TLS{InsecureSkipVerify: true}},
			probe.Unhealthy, probe.ReasonTLSHandshakeFailed,
		},
		{"nobody listens", 3, get("/"), probe.Unhealthy, probe.ReasonConnectionRefused},
	} {
		t.Run(test.name, func(t *testing.T) {
			port := 1 // where nobody listens
			if test.port < len(ports) {
				port = ports[test.port]
			}
			w := watch(t, test.check, port)
			w.becomes(test.verdict, test.reason)
			w.probes(4) // the verdict stays
			w.becomes(test.verdict, test.reason)
		})
	}
}

// TestProbesUseAConnectionAsLongAsNginxKeepsIt counts in nginx's own log how many probes each
// connection carries.
func TestProbesUseAConnectionAsLongAsNginxKeepsIt(t *testing.T) {
	for _, test := range []struct {
		name, keepAlive string
		most            int // probes over one connection, at most
		least           int // connections for 45 probes, at least
	}{
		{"for long", "", 1000, 1}, // nginx closes a connection after 1,000 requests
		{"for three requests", "keepalive_requests 3;", 3, 15},
		{"never", "keepalive_timeout 0;", 1, 45},
	} {
		t.Run(test.name, func(t *testing.T) {
			ports := freePorts(t, 1)
			block := "server { listen PORT0; access_log DIR/uses.log uses; " + test.keepAlive +
				" location / { return 200 ok; } }"
			server := startNginx(t, ports, block, nil)
			check := get("/")
			check.Confirm = 20 * time.Second // a slow answer makes no probe start beside, over another connection
			began := time.Now()
			w := watch(t, check, ports[0])
			w.becomes(probe.Healthy, "")
			w.probes(45)
			uses := server.uses(t, "uses.log")
			most := test.least + 2 + int(time.Since(began)/(10*time.Second)) // a connection is used for 10 s
			if len(uses) < test.least || len(uses) > most {
				t.Errorf("the probes went over %d connections, want %d to %d: %v", len(uses), test.least, most, uses)
			}
			for i, n := range uses {
				if n > test.most {
					t.Errorf("%d probes went over connection %d, want %d at most: %v", n, i, test.most, uses)
				}
			}
			w.becomes(probe.Healthy, "")
		})
	}
}

// TestReloadOfNginxChangesNoState makes nginx replace its workers. The old workers close the
// connections that are kept, and nginx stays Healthy.
func TestReloadOfNginxChangesNoState(t *testing.T) {
	ports := freePorts(t, 1)
	server := startNginx(t, ports, "server { listen PORT0; return 200 ok; }", nil)
	w := watch(t, get("/"), ports[0])
	w.becomes(probe.Healthy, "")
	for range 3 {
		w.probes(3)
		if err := server.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for len(w.notified) > 0 {
			<-w.notified
		}
		w.probes(5)
		if len(w.notified) > 0 {
			t.Error("its state has changed")
		}
		w.becomes(probe.Healthy, "")
	}
}

// TestNginxOverTLSIsVerifiedByNameAndAuthority probes nginx with good and bad certificates on both
// sides.
func TestNginxOverTLSIsVerifiedByNameAndAuthority(t *testing.T) {
	certs, other := newCertificates(t), newCertificates(t)
	ports := freePorts(t, 6)
	startNginx(t, ports, `
  ssl_certificate CERTS/good.crt;
  ssl_certificate_key CERTS/good.key;
  server { listen PORT0 ssl; server_name db.example.com; return 200 ok; }
  server { listen PORT0 ssl; server_name other.example.com;
    ssl_certificate CERTS/other.crt; ssl_certificate_key CERTS/other.key; return 200 ok; }
  server { listen PORT1 ssl; ssl_certificate CERTS/expired.crt; ssl_certificate_key CERTS/expired.key; return 200 ok; }
  server { listen PORT2 ssl; ssl_client_certificate CERTS/ca.crt; ssl_verify_client on; return 200 ok; }
  server { listen PORT3 ssl; ssl_reject_handshake on; }
  server { listen PORT4 ssl; ssl_protocols TLSv1.2; return 200 ok; }
  server { listen PORT5 ssl;
    ssl_certificate CERTS/other.crt; ssl_certificate_key CERTS/other.key; keepalive_timeout 0; return 200 ok; }
`, map[string]any{"CERTS": certs.dir})
	unverified := &probe.TLS{InsecureSkipVerify: true}
	for _, test := range []struct {
		name    string
		port    int
		tls     *probe.TLS
		host    string
		verdict probe.Verdict
		reason  string
	}{
		{"verified", 0, certs.over(), serverName, probe.Healthy, ""},
		{"by another name, which has another certificate", 0, certs.over(), "other.example.com", probe.Healthy, ""},
		{
			"by a name that it has no certificate for", 0, certs.over(), "third.example.com", probe.Unhealthy,
			probe.ReasonTLSNameMismatch,
		},
		{
			"by a serverName that is not the host", 0, &probe.TLS{RootCAs: certs.Pool(), ServerName: serverName},
			"third.example.com", probe.Healthy, "",
		},
		{"by another authority", 0, other.over(), serverName, probe.Unhealthy, probe.ReasonTLSUnknownAuthority},
		{"by the system's authorities", 0, &probe.TLS{}, serverName, probe.Unhealthy, probe.ReasonTLSUnknownAuthority},
		{"in plaintext", 0, nil, serverName, probe.Unhealthy, probe.ReasonUnexpectedStatus},
		{"expired", 1, certs.over(), serverName, probe.Unhealthy, probe.ReasonTLSCertificateExpired},
		{"expired and not verified", 1, unverified, serverName, probe.Healthy, ""},
		{"with a client's certificate", 2, certs.overWithClient(t), serverName, probe.Healthy, ""},
		{"without a client's certificate", 2, certs.over(), serverName, probe.Unhealthy, probe.ReasonUnexpectedStatus},
		{"a handshake that is refused", 3, certs.over(), serverName, probe.Unhealthy, probe.ReasonTLSHandshakeFailed},
		{"TLS 1.2", 4, certs.over(), serverName, probe.Healthy, ""},
		{"the wrong certificate", 5, certs.over(), serverName, probe.Unhealthy, probe.ReasonTLSNameMismatch},
		{"the wrong certificate, not verified, no keep-alive", 5, unverified, serverName, probe.Healthy, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := watch(t, probe.Check{HTTP: &probe.HTTPGet{Headers: host(test.host)}, TLS: test.tls}, ports[test.port])
			w.becomes(test.verdict, test.reason)
			w.probes(4)
			w.becomes(test.verdict, test.reason)
		})
	}
}
