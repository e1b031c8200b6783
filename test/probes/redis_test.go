package probes

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/external-backend/operator/internal/probe"
)

var ping = probe.TCPSocket{Send: "PING\r\n", Expect: "+PONG"}

// redis starts a server that writes no data to disk.
func redis(t *testing.T, args ...string) *server {
	t.Helper()
	args = append([]string{"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", t.TempDir()}, args...)
	return run(t, "redis-server", "redis-server", args...)
}

// TestExpectedTextFindsHungRedis stops a server, lets it continue, and kills it. While the server
// is stopped its kernel still accepts connections, so a check that only connects does not notice.
func TestExpectedTextFindsHungRedis(t *testing.T) {
	port := freePorts(t, 1)[0]
	server := redis(t, "--port", strconv.Itoa(port))
	pinged := watch(t, probe.Check{TCP: &ping, Timeout: 500 * ms}, port)
	connected := watch(t, probe.Check{TCP: &probe.TCPSocket{}, Timeout: 500 * ms}, port)
	pinged.becomes(probe.Healthy, "")
	connected.becomes(probe.Healthy, "")

	server.signal(t, syscall.SIGSTOP)
	pinged.becomes(probe.Unhealthy, probe.ReasonTimeout)
	connected.probes(3)
	connected.becomes(probe.Healthy, "")

	server.signal(t, syscall.SIGCONT)
	pinged.becomes(probe.Healthy, "")

	server.kill()
	pinged.becomes(probe.Unhealthy, probe.ReasonConnectionRefused)
	connected.becomes(probe.Unhealthy, probe.ReasonConnectionRefused)
}

// TestRedisWithPasswordAnswersAfterLogin sends PING with and without a login.
func TestRedisWithPasswordAnswersAfterLogin(t *testing.T) {
	port := freePorts(t, 1)[0]
	redis(t, "--port", strconv.Itoa(port), "--requirepass", "secret")
	watch(t, probe.Check{TCP: &ping, Timeout: time.Second}, port).becomes(probe.Unhealthy, probe.ReasonUnexpectedResponse)
	login := probe.TCPSocket{Send: "AUTH secret\r\nPING\r\n", Expect: "+OK\r\n+PONG"}
	watch(t, probe.Check{TCP: &login}, port).becomes(probe.Healthy, "")
}

// TestRedisOverTLSIsVerifiedByNameAndAuthority probes Redis with good and bad certificates on both
// sides.
func TestRedisOverTLSIsVerifiedByNameAndAuthority(t *testing.T) {
	certs := newCertificates(t)
	other := newCertificates(t)
	for _, server := range []struct{ name, certificate, clients string }{
		{"good", "good", "no"}, {"expired", "expired", "no"}, {"other", "other", "no"}, {"wants clients", "good", "yes"},
	} {
		port := freePorts(t, 1)[0]
		pair := certs.dir + "/" + server.certificate
		redis(t, "--port", "0", "--tls-port", strconv.Itoa(port),
			"--tls-ca-cert-file", certs.dir+"/ca.crt", "--tls-auth-clients", server.clients,
			"--tls-cert-file", pair+".crt", "--tls-key-file", pair+".key")
		for _, test := range []struct {
			server, name string
			tls          *probe.TLS
			verdict      probe.Verdict
			reason       string
		}{
			{"good", "verified", certs.over(), probe.Healthy, ""},
			{"good", "by another authority", other.over(), probe.Unhealthy, probe.ReasonTLSUnknownAuthority},
			{"good", "by the system's authorities", &probe.TLS{}, probe.Unhealthy, probe.ReasonTLSUnknownAuthority},
			{"expired", "verified", certs.over(), probe.Unhealthy, probe.ReasonTLSCertificateExpired},
			{"expired", "not verified", &probe.TLS{InsecureSkipVerify: true}, probe.Healthy, ""},
			{"other", "verified", certs.over(), probe.Unhealthy, probe.ReasonTLSNameMismatch},
			{"other", "by its name", &probe.TLS{RootCAs: certs.Pool(), ServerName: "other.example.com"}, probe.Healthy, ""},
			{"wants clients", "with a certificate", certs.overWithClient(t), probe.Healthy, ""},
			{"wants clients", "without one", certs.over(), probe.Unhealthy, probe.ReasonTLSClientCertificateRequired},
		} {
			if test.server == server.name {
				t.Run(server.name+", "+test.name, func(t *testing.T) {
					watch(t, probe.Check{TCP: &ping, TLS: test.tls}, port).becomes(test.verdict, test.reason)
					watch(t, probe.Check{TCP: &probe.TCPSocket{}, TLS: test.tls}, port).becomes(test.verdict, test.reason)
				})
			}
		}
	}
}
