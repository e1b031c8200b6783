package integration

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/test/harness"
)

// serveGRPC starts a gRPC server, and stops it when the test ends.
func serveGRPC(h *harness.Test, at netip.AddrPort, listen func(network, address string) (net.Listener, error),
	server *grpc.Server) {
	h.T.Helper()
	listener, err := listen("tcp", at.String())
	if err != nil {
		h.T.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	h.T.Cleanup(func() {
		server.Stop()
		done.Wait()
	})
}

// A gRPC check follows what a real gRPC server reports about the health of its services.
func TestGRPCCheckFollowsHealthService(t *testing.T) {
	h := parallel(t)
	h.AllowReferences()
	m := h.Machine("grpc")
	ca := newAuthority(t)
	certificate, err := issue(t, ca, time.Now().Add(time.Hour), "grpc.example.com").TLS()
	if err != nil {
		t.Fatal(err)
	}
	h.ApplyObject(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ca"}, Data: map[string]string{"ca.crt": string(ca.Cert)}},
	)
	services := health.NewServer() // "" serves from the start
	services.SetServingStatus("orders", grpc_health_v1.HealthCheckResponse_SERVING)
	services.SetServingStatus("billing", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	plain, secure, other := m.At4(9000), m.At4(9001), m.At4(9002)
	for at, server := range map[netip.AddrPort]*grpc.Server{
		plain: grpc.NewServer(), secure: grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&certificate))),
	} {
		grpc_health_v1.RegisterHealthServer(server, services)
		serveGRPC(h, at, m.Listen, server)
	}
	serveGRPC(h, other, m.Listen, grpc.NewServer()) // without the health service

	check := func(name string, at netip.AddrPort, grpc string) {
		t.Helper()
		h.ApplyBackend(name,
			"service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: grpc, port: 80, targetPort: %d}]\ntargets: [{name: a, address: %s}]\nhealthCheck: {%s, %s}",
			at.Port(), at.Addr(), grpc, harness.FastPace)
	}
	waitHealthy := func(name string, at netip.AddrPort) {
		t.Helper()
		h.WaitStates(name, harness.All(harness.Healthy, at))
		waitTarget(h, name, "a", "Healthy", "")
	}
	waitUnhealthy := func(name string, at netip.AddrPort, reason string) {
		t.Helper()
		h.WaitStates(name, harness.All(harness.Unhealthy, at))
		waitTarget(h, name, "a", "Unhealthy", reason)
	}
	const trusted = ", tls: {serverName: grpc.example.com, caCertificateRefs: [{kind: ConfigMap, name: ca}]}"
	check("whole", plain, "grpc: {}")
	check("orders", plain, "grpc: {service: orders, port: 9000}")
	check("billing", plain, "grpc: {service: billing}")
	check("nobody", plain, "grpc: {service: nobody}")
	check("secure", secure, "grpc: {service: orders, transport: TLS}"+trusted)
	check("unverified", secure, "grpc: {service: orders, transport: TLS}, tls: {serverName: grpc.example.com}")
	check("in-the-clear", secure, "grpc: {service: orders}")
	check("unimplemented", other, "grpc: {}")
	waitHealthy("whole", plain)
	waitHealthy("orders", plain)
	waitHealthy("secure", secure)
	waitUnhealthy("billing", plain, "GRPCNotServing")
	waitUnhealthy("nobody", plain, "GRPCNotServing")
	waitUnhealthy("unverified", secure, "TLSUnknownAuthority")
	h.WaitStates("in-the-clear", harness.All(harness.Unhealthy, secure))
	waitUnhealthy("unimplemented", other, "UnexpectedStatus")

	services.SetServingStatus("orders", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	services.SetServingStatus("billing", grpc_health_v1.HealthCheckResponse_SERVING)
	waitUnhealthy("orders", plain, "GRPCNotServing")
	waitUnhealthy("secure", secure, "GRPCNotServing")
	waitHealthy("billing", plain)
	waitHealthy("whole", plain)

	services.Shutdown() // as a server does before it stops
	waitUnhealthy("whole", plain, "GRPCNotServing")
	services.Resume()
	waitHealthy("whole", plain)
	waitHealthy("orders", plain)
	waitHealthy("secure", secure)
	waitUnhealthy("nobody", plain, "GRPCNotServing")
}
