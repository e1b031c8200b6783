// Package importertest generates Services with endpoints as people write them by hand, for tests.
package importertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	// Prefix4 holds all generated IPv4 addresses.
	Prefix4 = "198.51.100.0/24"
	// Prefix6 holds all generated IPv6 addresses.
	Prefix6 = "2001:db8:51::/64"
	// Numbers is how many numbers a port may have; the lowest are those of LowestNumbers.
	Numbers = 3
)

// LowestNumbers returns the lowest number of each port that a generated Service may have.
func LowestNumbers() map[string]int { return map[string]int{"http": 8080, "grpc": 8180, "admin": 8280} }

// Service is a Service with hand-written slices, or with an Endpoints object.
type Service struct {
	// Text are the manifests, without a namespace.
	Text     string
	Families []corev1.IPFamily
	// Routed is what Routed returns for what is written there.
	Routed []string
}

// generator writes one Service.
type generator struct {
	*rand.Rand
	name      string
	endpoints bool // write an Endpoints object, not slices
	ports     []string
	families  []corev1.IPFamily
	text      strings.Builder
	routed    []string
	written   int // addresses
	slices    int
}

// Generate writes a Service with 1 to 3 ports and 1 to 20 addresses. They are in slices, or in the
// subsets of an Endpoints object. The ports of an address may be spread over two of them.
func Generate(r *rand.Rand, name string) Service {
	g := generator{Rand: r, name: name, endpoints: r.IntN(4) == 0, families: []corev1.IPFamily{corev1.IPv4Protocol}}
	g.ports = []string{"http", "grpc", "admin"}[:1+g.IntN(3)]
	families := "ipFamilyPolicy: SingleStack\n  ipFamilies: [IPv4]"
	if g.IntN(2) == 0 {
		g.families = append(g.families, corev1.IPv6Protocol)
		families = "ipFamilyPolicy: PreferDualStack\n  ipFamilies: [IPv4, IPv6]"
	}
	fmt.Fprintf(&g.text, "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  %s\n  ports:\n", name, families)
	for i, port := range g.ports {
		fmt.Fprintf(&g.text, "  - {name: %s, port: %d}\n", port, 80+i)
	}
	if g.endpoints {
		fmt.Fprintf(&g.text, "---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: %s}\nsubsets:\n", name)
	}
	for range 1 + g.IntN(5) {
		g.writeGroup()
	}

	slices.Sort(g.routed)
	return Service{Text: g.text.String(), Families: g.families, Routed: g.routed}
}

// address is one address behind a Service.
type address struct {
	ip, hostname, zone string
	way                int // of ways
}

// ways are the ways to write conditions, and what they mean to kube-proxy: ready, serving,
// terminating; "" for an endpoint that gets no requests. An Endpoints object has the first two.
func ways() []struct{ conditions, state string } {
	return []struct{ conditions, state string }{
		{"", "true true false"},
		{"ready: false", ""},
		{"ready: true", "true true false"},
		{"ready: true, serving: true, terminating: false", "true true false"},
		{"ready: false, serving: true, terminating: true", "false true true"},
		{"ready: false, serving: false, terminating: true", ""},
	}
}

// writeGroup writes 1 to 4 addresses of one family, with the same ports.
func (g *generator) writeGroup() {
	numbers := map[string]int{}
	for _, port := range g.ports {
		numbers[port] = LowestNumbers()[port] + g.IntN(Numbers)
	}
	family, format := corev1.IPv4Protocol, "198.51.100.%d"
	if len(g.families) > 1 && g.IntN(2) == 0 {
		family, format = corev1.IPv6Protocol, "2001:db8:51::%x"
	}

	var addresses []address
	for range 1 + g.IntN(4) {
		g.written++
		a := address{ip: fmt.Sprintf(format, g.written)}
		if g.IntN(2) == 0 {
			a.hostname = fmt.Sprintf("web-%d", g.written)
		}
		a.way = g.IntN(2)
		if !g.endpoints {
			a.way, a.zone = g.IntN(len(ways())), []string{"", "eu-1", "eu-2"}[g.IntN(3)]
		}
		addresses = append(addresses, a)
		for _, port := range g.ports {
			if state := ways()[a.way].state; state != "" {
				g.routed = append(g.routed, describe(port, numbers[port], a.ip, a.zone, state))
			}
		}
	}

	parts := [][]string{g.ports}
	if n := len(g.ports); n > 1 && g.IntN(3) == 0 {
		at := 1 + g.IntN(n-1)
		parts = [][]string{g.ports[:at], g.ports[at:]}
	}
	for _, ports := range parts {
		if g.endpoints {
			g.writeSubset(ports, numbers, addresses)
		} else {
			g.writeSlice(family, ports, numbers, addresses)
		}
	}
}

// portList writes ports as a list in YAML.
func portList(ports []string, numbers map[string]int) string {
	var list []string
	for _, port := range ports {
		list = append(list, fmt.Sprintf("{name: %s, port: %d}", port, numbers[port]))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func (g *generator) writeSlice(family corev1.IPFamily, ports []string, numbers map[string]int, addresses []address) {
	g.slices++
	fmt.Fprintf(&g.text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: %s-s%d, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\nports: %s\nendpoints:\n",
		g.name, g.slices, g.name, family, portList(ports, numbers))
	for _, a := range addresses {
		fmt.Fprintf(&g.text, "- {addresses: [%q], conditions: {%s}", a.ip, ways()[a.way].conditions)
		if a.zone != "" {
			g.text.WriteString(", zone: " + a.zone)
		}
		if a.hostname != "" {
			g.text.WriteString(", hostname: " + a.hostname)
		}
		g.text.WriteString("}\n")
	}
}

func (g *generator) writeSubset(ports []string, numbers map[string]int, addresses []address) {
	fmt.Fprintf(&g.text, "- ports: %s\n", portList(ports, numbers))
	for way, field := range []string{"addresses", "notReadyAddresses"} {
		var list []string
		for _, a := range addresses {
			if a.way == way {
				list = append(list, fmt.Sprintf("{ip: %q, hostname: %q}", a.ip, a.hostname))
			}
		}
		if len(list) > 0 {
			fmt.Fprintf(&g.text, "  %s: [%s]\n", field, strings.Join(list, ", "))
		}
	}
}
