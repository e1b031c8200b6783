package api

import (
	"fmt"
	"strings"
	"testing"
)

const baseBackend = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: orders-db, namespace: default}
spec:
  service: {}
  ports:
  - {name: postgres, port: 5432}
  - {name: metrics, port: 9187}
  targets:
  - {name: primary, address: 203.0.113.10, ports: [{name: postgres, targetPort: 6432}]}
  - {name: replica, hostname: replica.db.example.com}
  - {name: pool, srvName: _postgres._tcp.db.example.com}
`

// repeat joins n documents made from format and a running number to a YAML list.
func repeat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "- "+format+"\n", i)
	}
	return b.String()
}

func TestNameRefusals(t *testing.T) {
	name := func(name string) mutation { return text("metadata.name", name) }
	refusals(t, baseBackend, []refusal{
		{"as documented", none, nil},
		{"one letter", name("a"), nil},
		{"63 characters", name(strings.Repeat("a", 63)), nil},
		{"64 characters", name(strings.Repeat("a", 64)), []string{"metadata.name must be a DNS label"}},
		{"a digit first", name("1a"), []string{"metadata.name must be a DNS label"}},
		{"two labels", name("a.b"), []string{"metadata.name must be a DNS label"}},
		{"upper case", name("A"), []string{"metadata.name"}},
		{"no spec", unset("spec"), []string{"spec: Required"}},
	})
}

func TestServiceRefusals(t *testing.T) {
	field := func(field, value string) mutation { return set("spec.service."+field, value) }
	typed := func(name string, ms ...mutation) mutation { return all(append(ms, field("type", name))...) }
	externalName := all(field("type", "ExternalName"), set("spec.targets", "[{name: db, hostname: db.example.com}]"))
	onNodes := set("spec.targets",
		"[{name: a, address: 203.0.113.1, nodeName: node-a}, {name: b, hostname: b.example.com, nodeName: node-b}]")
	refusals(t, baseBackend, []refusal{
		{"absent", unset("spec.service"), nil},
		{"serviceRef alone", all(unset("spec.service"), set("spec.serviceRef.name", "orders")), nil},
		{"serviceRef that begins with a digit", all(unset("spec.service"), text("spec.serviceRef.name", "1st")), nil},
		{"serviceRef beside service", set("spec.serviceRef.name", "orders"),
			[]string{"spec.serviceRef: Invalid", "at most one of service and serviceRef"}},
		{"serviceRef without a name", all(unset("spec.service"), set("spec.serviceRef", "{}")),
			[]string{"spec.serviceRef.name: Required"}},
		{"serviceRef in upper case", all(unset("spec.service"), set("spec.serviceRef.name", "Orders")),
			[]string{"spec.serviceRef.name: Invalid"}},

		{"name", field("name", "other"), nil},
		{"empty name", text("spec.service.name", ""), []string{"spec.service.name: Invalid"}},
		{"name with a digit first", text("spec.service.name", "1st"), []string{"spec.service.name: Invalid"}},
		{"name of two labels", field("name", "a.b"), []string{"spec.service.name: Invalid"}},
		{"name of 64 characters", field("name", strings.Repeat("a", 64)), []string{"spec.service.name: Too long"}},

		{"NodePort", typed("NodePort"), nil},
		{"LoadBalancer", typed("LoadBalancer"), nil},
		{"Headless", typed("Headless"), nil},
		{"Ref is a word of status", typed("Ref"), []string{"spec.service.type: Unsupported"}},
		{"kept on deletion", text("spec.deletionPolicy", "Retain"), nil},
		{"deleted on deletion", text("spec.deletionPolicy", "Delete"), nil},
		{"unknown deletion policy", text("spec.deletionPolicy", "Orphan"), []string{"spec.deletionPolicy: Unsupported"}},
		{"empty deletion policy", text("spec.deletionPolicy", ""), []string{"spec.deletionPolicy: Unsupported"}},
		{"adoption", field("adoptionPolicy", "IfSelectorless"), nil},
		{"unknown adoption", field("adoptionPolicy", "Always"), []string{"spec.service.adoptionPolicy: Unsupported"}},

		{
			"labels and annotations",
			all(field("labels", "{app.kubernetes.io/part-of: shop, empty: ''}"),
				field("annotations", "{example.com/note: any text}")),
			nil,
		},
		{"value that is no label's", field("labels", "{a: b c}"), []string{"spec.service.labels.a: Invalid"}},
		{"label value too long", field("labels", "{a: "+strings.Repeat("b", 64)+"}"),
			[]string{"spec.service.labels.a: Too long"}},
		{"label of the slices", field("labels", "{kubernetes.io/service-name: x}"), []string{"spec.service.labels: Invalid"}},
		{"label of ours", field("labels", "{external-backend.io/name: x}"), []string{"spec.service.labels: Invalid"}},
		{"annotation of ours", field("annotations", "{external-backend.io/endpoints: x}"),
			[]string{"spec.service.annotations: Invalid"}},
		{"annotation too long", field("annotations", "{a: "+strings.Repeat("b", 16385)+"}"),
			[]string{"spec.service.annotations.a: Too long"}},
		{"65 labels",
			field("labels", "{"+strings.ReplaceAll(strings.TrimPrefix(repeat(65, "k%d: v"), "- "), "\n- ", ", ")+"}"),
			[]string{"spec.service.labels: Too many"}},
		{"the headless label", field("labels", "{service.kubernetes.io/headless: ''}"),
			[]string{"spec.service.labels: Invalid"}},
		{"the managed-by label", field("labels", "{endpointslice.kubernetes.io/managed-by: x}"),
			[]string{"spec.service.labels: Invalid"}},

		{"both families", all(field("ipFamilyPolicy", "PreferDualStack"), field("ipFamilies", "[IPv6, IPv4]")), nil},
		{"unknown policy", field("ipFamilyPolicy", "DualStack"), []string{"spec.service.ipFamilyPolicy: Unsupported"}},
		{"unknown family", field("ipFamilies", "[IPv5]"), []string{"spec.service.ipFamilies[0]: Unsupported"}},
		{"a family twice", field("ipFamilies", "[IPv4, IPv4]"), []string{"spec.service.ipFamilies: Invalid"}},
		{"three families", field("ipFamilies", "[IPv4, IPv6, IPv4]"), []string{"spec.service.ipFamilies: Too many"}},
		{"two families, one stack", all(field("ipFamilyPolicy", "SingleStack"), field("ipFamilies", "[IPv4, IPv6]")),
			[]string{"spec.service.ipFamilies: Invalid"}},

		{"affinity", all(field("sessionAffinity", "ClientIP"), field("sessionAffinityTimeoutSeconds", "86400")), nil},
		{"affinity for 0 s", all(field("sessionAffinity", "ClientIP"), field("sessionAffinityTimeoutSeconds", "0")),
			[]string{"spec.service.sessionAffinityTimeoutSeconds: Invalid"}},
		{"affinity for more than a day",
			all(field("sessionAffinity", "ClientIP"), field("sessionAffinityTimeoutSeconds", "86401")),
			[]string{"spec.service.sessionAffinityTimeoutSeconds: Invalid"}},
		{"timeout without affinity", field("sessionAffinityTimeoutSeconds", "600"),
			[]string{"spec.service.sessionAffinityTimeoutSeconds: Invalid"}},
		{"timeout with affinity None",
			all(field("sessionAffinity", "None"), field("sessionAffinityTimeoutSeconds", "600")),
			[]string{"spec.service.sessionAffinityTimeoutSeconds: Invalid"}},
		{"unknown affinity", field("sessionAffinity", "Cookie"), []string{"spec.service.sessionAffinity: Unsupported"}},

		{"internal Local, every target on a node", all(onNodes, field("internalTrafficPolicy", "Local")), nil},
		{"internal Local without targets", all(unset("spec.targets"), field("internalTrafficPolicy", "Local")), nil},
		{"internal Local, targets on no node", field("internalTrafficPolicy", "Local"),
			[]string{"spec.targets: Invalid", "nodeName"}},
		{"internal Local, one target on no node",
			all(onNodes, unset("spec.targets.1.nodeName"), field("internalTrafficPolicy", "Local")),
			[]string{"spec.targets: Invalid", "nodeName"}},
		{"external Local, every target on a node", typed("NodePort", onNodes, field("externalTrafficPolicy", "Local")), nil},
		{"external Local, targets on no node", typed("NodePort", field("externalTrafficPolicy", "Local")),
			[]string{"spec.targets: Invalid", "nodeName"}},
		{"external Cluster", typed("LoadBalancer", field("externalTrafficPolicy", "Cluster")), nil},
		{"external policy of a ClusterIP", field("externalTrafficPolicy", "Cluster"),
			[]string{"spec.service.externalTrafficPolicy: Invalid"}},
		{"unknown external policy", typed("NodePort", field("externalTrafficPolicy", "Node")),
			[]string{"spec.service.externalTrafficPolicy: Unsupported"}},
		{"unknown internal policy", field("internalTrafficPolicy", "Node"),
			[]string{"spec.service.internalTrafficPolicy: Unsupported"}},
		{"PreferClose", field("trafficDistribution", "PreferClose"), nil},
		{"PreferSameZone", field("trafficDistribution", "PreferSameZone"), nil},
		{"PreferSameNode", field("trafficDistribution", "PreferSameNode"), nil},
		{"a distribution to come", field("trafficDistribution", "PreferFar"), nil},
		{"empty distribution", text("spec.service.trafficDistribution", ""),
			[]string{"spec.service.trafficDistribution: Invalid"}},

		{
			"load balancer",
			typed("LoadBalancer", field("loadBalancerClass", "example.com/lb"),
				field("loadBalancerSourceRanges", `[203.0.113.0/24, "2001:db8::/32"]`)),
			nil,
		},
		{"load balancer class of a ClusterIP", field("loadBalancerClass", "example.com/lb"),
			[]string{"spec.service.loadBalancerClass: Invalid"}},
		{"load balancer class that is no name", typed("LoadBalancer", field("loadBalancerClass", "a b")),
			[]string{"spec.service.loadBalancerClass: Invalid"}},
		{"source ranges of a NodePort", typed("NodePort", field("loadBalancerSourceRanges", "[203.0.113.0/24]")),
			[]string{"spec.service.loadBalancerSourceRanges: Invalid"}},
		{"source range with host bits", typed("LoadBalancer", field("loadBalancerSourceRanges", "[203.0.113.1/24]")),
			[]string{"spec.service.loadBalancerSourceRanges[0]: Invalid", "must be a CIDR, such as 203.0.113.0/24"}},
		{"source range that is an address", typed("LoadBalancer", field("loadBalancerSourceRanges", "[203.0.113.1]")),
			[]string{"spec.service.loadBalancerSourceRanges[0]: Invalid"}},

		{"ExternalName", externalName, nil},
		{"ExternalName with two targets",
			all(externalName, set("spec.targets", "[{name: a, hostname: a.example.com}, {name: b, hostname: b.example.com}]")),
			[]string{"spec.targets: Invalid", "ExternalName"}},
		{"ExternalName without targets", all(externalName, unset("spec.targets")),
			[]string{"spec.targets: Invalid", "ExternalName"}},
		{"ExternalName for an address", all(externalName, set("spec.targets", "[{name: a, address: 203.0.113.1}]")),
			[]string{"spec.targets: Invalid", "ExternalName"}},
		{"ExternalName for an srvName",
			all(externalName, set("spec.targets", "[{name: a, srvName: _a._tcp.example.com}]")),
			[]string{"spec.targets: Invalid", "ExternalName"}},
		{"ExternalName with a check", all(externalName, set("spec.healthCheck.tcpSocket", "{}")),
			[]string{"spec.healthCheck: Invalid", "ExternalName"}},
		{"ExternalName with families", all(externalName, field("ipFamilies", "[IPv4]")),
			[]string{"spec.service.ipFamilies: Invalid"}},
		{"ExternalName with a family policy", all(externalName, field("ipFamilyPolicy", "SingleStack")),
			[]string{"spec.service.ipFamilyPolicy: Invalid"}},
		{"ExternalName passed through", all(externalName, set("spec.dns.resolution", "Passthrough")),
			[]string{"spec.dns.resolution: Invalid"}},
	})
}

func TestPortRefusals(t *testing.T) {
	ports := func(document string) mutation { return all(set("spec.ports", document), unset("spec.targets")) }
	field := func(field, value string) mutation { return set("spec.ports.0."+field, value) }
	refusals(t, baseBackend, []refusal{
		{"none", ports("[]"), []string{"spec.ports: Invalid"}},
		{"absent", unset("spec.ports"), []string{"spec.ports: Required"}},
		{"100", ports(repeat(100, "{name: p%[1]d, port: %[1]d1}")), nil},
		{"101", ports(repeat(101, "{name: p%[1]d, port: %[1]d1}")), []string{"spec.ports: Too many"}},
		{"unnamed alone", ports("[{port: 80}]"), nil},
		{"empty name alone", ports(`[{name: "", port: 80}]`), nil},
		{"second port beside an unnamed one", ports("[{port: 80}, {name: b, port: 81}]"),
			[]string{"spec.ports: Invalid", "name"}},
		{"two unnamed", ports("[{port: 80}, {port: 81}]"), []string{"spec.ports: Invalid", "name"}},
		{"the same name twice", ports("[{name: a, port: 80}, {name: a, port: 81}]"),
			[]string{"spec.ports: Invalid", "same name"}},
		{"the same name for TCP and UDP", ports("[{name: a, port: 53}, {name: a, port: 53, protocol: UDP}]"),
			[]string{"spec.ports: Invalid", "same name"}},
		{"one port for TCP and UDP", ports("[{name: a, port: 53}, {name: b, port: 53, protocol: UDP}]"), nil},
		{"the same port twice", ports("[{name: a, port: 80}, {name: b, port: 80}]"),
			[]string{"spec.ports: Invalid", "same port"}},
		{"name that is no label", field("name", "a.b"), []string{"spec.ports[0].name: Invalid"}},
		{"name in upper case", field("name", "A"), []string{"spec.ports[0].name: Invalid"}},
		{"name of 64 characters", field("name", strings.Repeat("a", 64)), []string{"spec.ports[0].name: Too long"}},
		{"no port", unset("spec.ports.0.port"), []string{"spec.ports[0].port: Required"}},
		{"port 0", field("port", "0"), []string{"spec.ports[0].port: Invalid"}},
		{"port 65535", field("port", "65535"), nil},
		{"port 65536", field("port", "65536"), []string{"spec.ports[0].port: Invalid"}},
		{"targetPort", field("targetPort", "6432"), nil},
		{"targetPort 0", field("targetPort", "0"), []string{"spec.ports[0].targetPort: Invalid"}},
		{"targetPort 65536", field("targetPort", "65536"), []string{"spec.ports[0].targetPort: Invalid"}},
		{"targetPort by name", field("targetPort", "postgres"), []string{"spec.ports[0].targetPort: Invalid"}},
		{"UDP", field("protocol", "UDP"), nil},
		{"SCTP", field("protocol", "SCTP"), nil},
		{"unknown protocol", field("protocol", "QUIC"), []string{"spec.ports[0].protocol: Unsupported"}},
		{"appProtocol", field("appProtocol", "kubernetes.io/h2c"), nil},
		{"empty appProtocol", text("spec.ports.0.appProtocol", ""), []string{"spec.ports[0].appProtocol: Invalid"}},
		{"appProtocol that is no name", field("appProtocol", "a b"), []string{"spec.ports[0].appProtocol: Invalid"}},
		{"nodePort 0", all(set("spec.service.type", "NodePort"), field("nodePort", "0")),
			[]string{"spec.ports[0].nodePort: Invalid"}},
		{"nodePort on a ClusterIP", field("nodePort", "30080"), []string{"spec.ports: Invalid", "nodePort"}},
		{"nodePort without service", all(unset("spec.service"), field("nodePort", "30080")),
			[]string{"spec.ports: Invalid", "nodePort"}},
		{"nodePort with serviceRef",
			all(unset("spec.service"), set("spec.serviceRef.name", "x"), field("nodePort", "30080")),
			[]string{"spec.ports: Invalid", "nodePort"}},
		{"nodePort on a headless Service", all(set("spec.service.type", "Headless"), field("nodePort", "30080")),
			[]string{"spec.ports: Invalid", "nodePort"}},
		{"nodePort", all(set("spec.service.type", "NodePort"), field("nodePort", "30080")), nil},
		{"nodePort of a load balancer", all(set("spec.service.type", "LoadBalancer"), field("nodePort", "30080")), nil},
		{"nodePort 65536", all(set("spec.service.type", "NodePort"), field("nodePort", "65536")),
			[]string{"spec.ports[0].nodePort: Invalid"}},
		{"a nodePort twice",
			all(set("spec.service.type", "NodePort"), field("nodePort", "30080"), set("spec.ports.1.nodePort", "30080")),
			[]string{"spec.ports: Invalid", "nodePort"}},
		{
			"a nodePort for TCP and UDP",
			all(set("spec.service.type", "NodePort"),
				ports("[{name: a, port: 53, nodePort: 30053}, {name: b, port: 53, nodePort: 30053, protocol: UDP}]")),
			nil,
		},
	})
}

func TestTargetRefusals(t *testing.T) {
	address := func(value string) mutation { return text("spec.targets.0.address", value) }
	hostname := func(value string) mutation { return text("spec.targets.1.hostname", value) }
	srvName := func(value string) mutation { return text("spec.targets.2.srvName", value) }
	field := func(field, value string) mutation { return set("spec.targets.0."+field, value) }
	label := strings.Repeat("a", 63)
	cases := []refusal{
		{"absent", unset("spec.targets"), nil},
		{"empty", set("spec.targets", "[]"), nil},
		{"1,024", set("spec.targets", repeat(1024, "{name: t%[1]d, address: 203.0.113.1}")), nil},
		{"1,025", set("spec.targets", repeat(1025, "{name: t%[1]d, address: 203.0.113.1}")),
			[]string{"spec.targets: Too many"}},
		{"the same name twice",
			set("spec.targets", "[{name: a, address: 203.0.113.1}, {name: a, address: 203.0.113.2}]"),
			[]string{"spec.targets[1]: Duplicate"}},
		{"the same address twice is the controller's to report",
			set("spec.targets", "[{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.1}]"), nil},
		{"no name", unset("spec.targets.0.name"), []string{"spec.targets[0].name: Required"}},
		{"empty name", text("spec.targets.0.name", ""), []string{"spec.targets[0].name: Invalid"}},
		{"name that begins with a digit", text("spec.targets.0.name", "1"), nil},
		{"name that is no label", field("name", "a.b"), []string{"spec.targets[0].name: Invalid"}},
		{"name in upper case", field("name", "A"), []string{"spec.targets[0].name: Invalid"}},
		{"name of 64 characters", field("name", label+"a"), []string{"spec.targets[0].name: Too long"}},
		{"neither address nor name", unset("spec.targets.0.address"),
			[]string{"spec.targets[0]: Invalid", "address hostname srvName"}},
		{"address and hostname", field("hostname", "a.example.com"),
			[]string{"spec.targets[0]: Invalid", "address hostname srvName"}},
		{"address and srvName", field("srvName", "_a._tcp.example.com"),
			[]string{"spec.targets[0]: Invalid", "address hostname srvName"}},
		{"hostname and srvName", set("spec.targets.1.srvName", "_a._tcp.example.com"),
			[]string{"spec.targets[1]: Invalid", "address hostname srvName"}},

		{"ports", field("ports", "[{name: postgres, targetPort: 1}, {name: metrics, targetPort: 65535}]"), nil},
		{"port of an unnamed port", all(set("spec.ports", "[{port: 80}]"), field("ports", "[{targetPort: 8080}]")), nil},
		{"port without a number", field("ports", "[{name: postgres}]"),
			[]string{"spec.targets[0].ports[0].targetPort: Required"}},
		{"port 0", field("ports", "[{name: postgres, targetPort: 0}]"),
			[]string{"spec.targets[0].ports[0].targetPort: Invalid"}},
		{"port 65536", field("ports", "[{name: postgres, targetPort: 65536}]"),
			[]string{"spec.targets[0].ports[0].targetPort: Invalid"}},
		{"a port twice is the controller's to report",
			field("ports", "[{name: postgres, targetPort: 1}, {name: postgres, targetPort: 2}]"), nil},
		{"an empty port name", field("ports", "[{name: '', targetPort: 1}]"), nil},

		{"zone and node", all(field("zone", "eu-west-1a"), field("nodeName", "node-1.example.com")), nil},
		{"empty zone", text("spec.targets.0.zone", ""), []string{"spec.targets[0].zone: Invalid"}},
		{"empty node", text("spec.targets.0.nodeName", ""), []string{"spec.targets[0].nodeName: Invalid"}},
		{"zone that is no label value", field("zone", "eu/west"), []string{"spec.targets[0].zone: Invalid"}},
		{"zone of 64 characters", field("zone", label+"a"), []string{"spec.targets[0].zone: Too long"}},
		{"node that is no name", field("nodeName", "Node_1"), []string{"spec.targets[0].nodeName: Invalid"}},
		{"tier 127", field("tier", "127"), nil},
		{"tier 128", field("tier", "128"), []string{"spec.targets[0].tier: Invalid"}},
		{"tier -1", field("tier", "-1"), []string{"spec.targets[0].tier: Invalid"}},
		{"draining", field("adminState", "Draining"), nil},
		{"disabled", field("adminState", "Disabled"), nil},
		{"unknown adminState", field("adminState", "Down"), []string{"spec.targets[0].adminState: Unsupported"}},
	}
	for _, a := range []string{"10.0.0.1", "192.168.1.1", "100.64.0.1", "240.0.0.1", "0.1.2.3", "255.255.255.254",
		"2001:db8::1", "fd00::1", "64:ff9b::a00:1", "2002:a00:1::1"} {
		cases = append(cases, refusal{"address " + a, address(a), nil})
	}
	for _, a := range []string{
		"", "localhost", "203.0.113.10:80", "203.0.113.0/24", "203.0.113", "203.0.113.010", "203.0.113.256", " 203.0.113.10",
		"127.0.0.1", "127.255.255.254", "169.254.169.254", "224.0.0.1", "239.1.1.1", "255.255.255.255", "0.0.0.0",
		"::", "::1", "fe80::1", "fe80::1%eth0", "ff02::1", "ff0e::1", "::ffff:203.0.113.10", "::ffff:cb00:710a",
		"2001:DB8::1", "2001:db8:0::1", "2001:0db8::1", "2001:db8:0:0:0:0:0:1", "[2001:db8::1]",
		strings.Repeat("1", 46),
	} {
		cases = append(cases, refusal{"address " + a, address(a), []string{"spec.targets[0].address: "}})
	}
	for _, h := range []string{
		"example.com", "a.b", "1.example.com", "xn--bcher-kva.example", "a-b.example.com", "1.2.3.4.example",
		label + ".example.com",
		strings.Repeat(label+".", 3) + strings.Repeat("a", 61),
	} {
		cases = append(cases, refusal{"hostname " + h, hostname(h), nil}, refusal{"srvName " + h, srvName(h), nil})
	}
	for _, h := range []string{
		"", "db", "db.", "db.example.com.", "DB.example.com", "db..example.com", ".example.com", "-a.example.com",
		"a-.example.com",
		"*.example.com", "db.example.com:80", "a b.example.com", "bücher.example", label + "a.example.com",
		"203.0.113.10", "2001:db8::1", "256.1.1.1", "1.2.3", "1.2", "0x7f.0x1", "127.0x1",
		strings.Repeat(label+".", 3) + strings.Repeat("a", 62),
	} {
		cases = append(cases,
			refusal{"hostname " + h, hostname(h), []string{"spec.targets[1].hostname: "}},
			refusal{"srvName " + h, srvName(h), []string{"spec.targets[2].srvName: "}})
	}
	cases = append(cases,
		refusal{"hostname with an underscore", hostname("_a.example.com"), []string{"spec.targets[1].hostname: Invalid"}},
		refusal{"srvName without underscores", srvName("web.service.consul"), nil},
		refusal{"srvName with an underscore inside", srvName("_my_service._tcp.example.com"), nil},
	)
	refusals(t, baseBackend, cases)
}

func TestDNSRefusals(t *testing.T) {
	field := func(field, value string) mutation { return set("spec.dns."+field, value) }
	passthrough := all(field("resolution", "Passthrough"), set("spec.service.type", "Headless"),
		set("spec.targets", "[{name: db, hostname: db.example.com}]"))
	tls := all(field("transport", "TLS"),
		field("tls", "{serverName: dns.example.com, caCertificateRefs: [{kind: ConfigMap, name: dns-ca, key: ca.crt}]}"))
	cases := []refusal{
		{"empty", set("spec.dns", "{}"), nil},
		{"Passthrough", passthrough, nil},
		{"Passthrough with serviceRef", all(passthrough, unset("spec.service"), set("spec.serviceRef.name", "x")), nil},
		{"Passthrough without service", all(passthrough, unset("spec.service")),
			[]string{"spec.dns.resolution: Invalid", "Headless"}},
		{"Passthrough behind a ClusterIP", all(passthrough, set("spec.service.type", "ClusterIP")),
			[]string{"spec.dns.resolution: Invalid", "Headless"}},
		{"Passthrough of two targets",
			all(passthrough, set("spec.targets", "[{name: a, hostname: a.example.com}, {name: b, hostname: b.example.com}]")),
			[]string{"spec.targets: Invalid", "Passthrough"}},
		{"Passthrough of nothing", all(passthrough, unset("spec.targets")), []string{"spec.targets: Invalid", "Passthrough"}},
		{"Passthrough of an address", all(passthrough, set("spec.targets", "[{name: a, address: 203.0.113.1}]")),
			[]string{"spec.targets: Invalid", "Passthrough"}},
		{"Passthrough of an srvName",
			all(passthrough, set("spec.targets", "[{name: a, srvName: _a._tcp.example.com}]")),
			[]string{"spec.targets: Invalid", "Passthrough"}},
		{"unknown resolution", field("resolution", "Cache"), []string{"spec.dns.resolution: Unsupported"}},
		{"8 nameservers", field("nameservers", "["+strings.Repeat("198.51.100.53,", 8)+"]"), nil},
		{"9 nameservers", field("nameservers", "["+strings.Repeat("198.51.100.53,", 9)+"]"),
			[]string{"spec.dns.nameservers: Too many"}},
		{"TCP", field("transport", "TCP"), nil},
		{"unknown transport", field("transport", "HTTPS"), []string{"spec.dns.transport: Unsupported"}},
		{"TLS", tls, nil},
		{"TLS by the system roots", field("transport", "TLS"), nil},
		{"tls over UDP", all(tls, field("transport", "UDP")), []string{"spec.dns.tls: Invalid"}},
		{"serverName that is no name", all(tls, field("tls.serverName", "a b")),
			[]string{"spec.dns.tls.serverName: Invalid"}},
		{"CA of an unknown kind", all(tls, field("tls.caCertificateRefs.0.kind", "Issuer")),
			[]string{"spec.dns.tls.caCertificateRefs[0].kind: Unsupported"}},
		{"CA without a name", all(tls, field("tls.caCertificateRefs", "[{key: ca.crt}]")),
			[]string{"spec.dns.tls.caCertificateRefs[0].name: Required"}},
		{"minTTLSeconds 1", field("minTTLSeconds", "1"), nil},
		{"minTTLSeconds 0", field("minTTLSeconds", "0"), []string{"spec.dns.minTTLSeconds: Invalid"}},
		{"minTTLSeconds 604801", field("minTTLSeconds", "604801"), []string{"spec.dns.minTTLSeconds: Invalid"}},
		{"maxTTLSeconds 0", field("maxTTLSeconds", "0"), []string{"spec.dns.maxTTLSeconds: Invalid"}},
		{"maxTTLSeconds below the least", field("maxTTLSeconds", "1"), nil},
		{"maxTTLSeconds 604801", field("maxTTLSeconds", "604801"), []string{"spec.dns.maxTTLSeconds: Invalid"}},
		{"staleSeconds 0", field("staleSeconds", "0"), nil},
		{"staleSeconds -1", field("staleSeconds", "-1"), []string{"spec.dns.staleSeconds: Invalid"}},
		{"staleSeconds 2592001", field("staleSeconds", "2592001"), []string{"spec.dns.staleSeconds: Invalid"}},
		{"removalDelaySeconds -1", field("removalDelaySeconds", "-1"), []string{"spec.dns.removalDelaySeconds: Invalid"}},
		{"removalDelaySeconds 604801", field("removalDelaySeconds", "604801"),
			[]string{"spec.dns.removalDelaySeconds: Invalid"}},
	}
	for _, n := range []string{
		"198.51.100.53", "198.51.100.53:53", "198.51.100.53:65535", "2001:db8::53", "[2001:db8::53]:853", "10.96.0.10",
		"169.254.20.10"} {
		cases = append(cases, refusal{"nameserver " + n, field("nameservers", `["`+n+`"]`), nil})
	}
	for _, n := range []string{
		"", "dns.example.com", "198.51.100.53:", "198.51.100.53:0", "198.51.100.53:65536", "198.51.100.53:dns",
		"198.51.100:53",
		"2001:db8::53:853x", "[2001:db8::53]", "[198.51.100.53]:53", "2001:db8::zz", "[2001:db8::zz]:53",
		"198.51.100.53:53:53",
		"127.0.0.1", "127.0.0.53:53", "::1", "[::1]:53", "0.0.0.0", "[::]:53", "224.0.0.251", "[ff02::fb]:5353",
		"::ffff:127.0.0.1", "[fe80::1%eth0]:53",
	} {
		cases = append(cases,
			refusal{"nameserver " + n, field("nameservers", `["`+n+`"]`), []string{"spec.dns.nameservers[0]: "}})
	}
	refusals(t, baseBackend, cases)
}

func TestHealthCheckRefusals(t *testing.T) {
	field := func(field, value string) mutation { return set("spec.healthCheck."+field, value) }
	tcp, tlsTCP := field("tcpSocket", "{}"), field("tcpSocket", "{transport: TLS}")
	http := func(ms ...mutation) mutation { return all(append([]mutation{field("httpGet", "{}")}, ms...)...) }
	header := func(name, value string) mutation {
		return http(field("httpGet.httpHeaders", "[{name: '', value: ''}]"),
			text("spec.healthCheck.httpGet.httpHeaders.0.name", name),
			text("spec.healthCheck.httpGet.httpHeaders.0.value", value))
	}
	tls := field("tls",
		"{serverName: db.example.com, caCertificateRefs: [{kind: Secret, name: db-ca, key: ca.crt}], clientCertificateRef: {name: db-client}, verification: None}")
	udpOnly := all(set("spec.ports", "[{name: dns, port: 53, protocol: UDP}]"),
		set("spec.targets", "[{name: a, address: 203.0.113.1}]"))
	cases := []refusal{
		{"tcpSocket", tcp, nil},
		{"httpGet", http(), nil},
		{"grpc", field("grpc", "{}"), nil},
		{"none", set("spec.healthCheck", "{}"), []string{"spec.healthCheck: Invalid", "httpGet tcpSocket grpc"}},
		{"httpGet and tcpSocket", http(tcp), []string{"spec.healthCheck: Invalid", "httpGet tcpSocket grpc"}},
		{"all three", http(tcp, field("grpc", "{}")), []string{"spec.healthCheck: Invalid", "httpGet tcpSocket grpc"}},
		{"observe", all(tcp, field("mode", "Observe")), nil},
		{"unknown mode", all(tcp, field("mode", "Off")), []string{"spec.healthCheck.mode: Unsupported"}},
		{"unknown initial state", all(tcp, field("initialState", "Unknown")),
			[]string{"spec.healthCheck.initialState: Unsupported"}},
		{"timeout longer than the period", all(tcp, field("periodSeconds", "1"), field("timeoutSeconds", "10")), nil},

		{"path with a query", http(field("httpGet.path", "/a/b?c=d")), nil},
		{"relative path", http(field("httpGet.path", "healthz")), []string{"spec.healthCheck.httpGet.path: Invalid"}},
		{"path with a line break", http(text("spec.healthCheck.httpGet.path", "/\r\nHost: x")),
			[]string{"spec.healthCheck.httpGet.path: Invalid"}},
		{"path of 1,025 characters", http(field("httpGet.path", "/"+strings.Repeat("a", 1024))),
			[]string{"spec.healthCheck.httpGet.path: Too long"}},
		{"HTTPS", http(field("httpGet.scheme", "HTTPS")), nil},
		{"unknown scheme", http(field("httpGet.scheme", "https")), []string{"spec.healthCheck.httpGet.scheme: Unsupported"}},
		{
			"host",
			http(
				field("httpGet.httpHeaders",
					"[{name: Host, value: 'db.example.com:8443'}, {name: X, value: a}, {name: X, value: b}]"),
			),
			nil,
		},
		{"two hosts", http(field("httpGet.httpHeaders", "[{name: Host, value: a}, {name: hOST, value: b}]")),
			[]string{"spec.healthCheck.httpGet.httpHeaders: Invalid", "at most one Host header"}},
		{"header", header("X-Probe", "1"), nil},
		{"header of odd characters", header("!#$%&'*+-.^_`|~09Az", "\tä ö"), nil},
		{"header without value", header("X-Probe", ""), nil},
		{"header without name", header("", "1"), []string{"spec.healthCheck.httpGet.httpHeaders[0].name: Invalid"}},
		{"header name with a colon", header("X:", "1"), []string{"spec.healthCheck.httpGet.httpHeaders[0].name: Invalid"}},
		{"header name with a space", header("X Y", "1"), []string{"spec.healthCheck.httpGet.httpHeaders[0].name: Invalid"}},
		{
			"header value with a line feed",
			header("X", "1\nY: 2"),
			[]string{"spec.healthCheck.httpGet.httpHeaders[0].value: Invalid"},
		},
		{
			"header value with a carriage return",
			header("X", "1\r"),
			[]string{"spec.healthCheck.httpGet.httpHeaders[0].value: Invalid"},
		},
		{"header value with a NUL", header("X", "\x00"), []string{"spec.healthCheck.httpGet.httpHeaders[0].value: Invalid"}},
		{
			"33 headers",
			http(field("httpGet.httpHeaders", repeat(33, `{name: X-%d, value: ""}`))),
			[]string{"spec.healthCheck.httpGet.httpHeaders: Too many"},
		},
		{
			"no statuses",
			http(field("httpGet.expectedStatuses", "[]")),
			[]string{"spec.healthCheck.httpGet.expectedStatuses: Invalid"},
		},

		{"exchange", field("tcpSocket", `{port: postgres, send: "PING\r\n", expect: +PONG}`), nil},
		{
			"send of 1,025 characters",
			field("tcpSocket", "{send: "+strings.Repeat("a", 1025)+"}"),
			[]string{"spec.healthCheck.tcpSocket.send: Too long"},
		},
		{
			"expect of 1,025 characters",
			field("tcpSocket", "{expect: "+strings.Repeat("a", 1025)+"}"),
			[]string{"spec.healthCheck.tcpSocket.expect: Too long"},
		},
		{"nothing sent", field("tcpSocket", "{send: ''}"), []string{"spec.healthCheck.tcpSocket.send: Invalid"}},
		{"nothing expected", field("tcpSocket", "{expect: ''}"), []string{"spec.healthCheck.tcpSocket.expect: Invalid"}},
		{"grpc service without a name", field("grpc", "{service: ''}"), []string{"spec.healthCheck.grpc.service: Invalid"}},
		{"grpc service", field("grpc", "{service: inventory.v1.Inventory, transport: TLS}"), nil},
		{
			"unknown grpc transport",
			field("grpc", "{transport: MTLS}"),
			[]string{"spec.healthCheck.grpc.transport: Unsupported"},
		},
		{
			"unknown tcpSocket transport",
			field("tcpSocket", "{transport: tls}"),
			[]string{"spec.healthCheck.tcpSocket.transport: Unsupported"},
		},

		{"tls for tcpSocket TLS", all(field("tcpSocket", "{transport: TLS}"), tls), nil},
		{"tls for plaintext tcpSocket", all(tcp, tls), []string{"spec.healthCheck.tls: Invalid"}},
		{
			"tls for plaintext tcpSocket, written out",
			all(field("tcpSocket", "{transport: Plaintext}"), tls),
			[]string{"spec.healthCheck.tls: Invalid"},
		},
		{"empty tls for plaintext", all(tcp, field("tls", "{}")), []string{"spec.healthCheck.tls: Invalid"}},
		{"tls for HTTPS", http(tls, field("httpGet.scheme", "HTTPS")), nil},
		{"tls for grpc TLS", all(field("grpc", "{transport: TLS}"), tls), nil},
		{"tls for HTTP", http(tls), []string{"spec.healthCheck.tls: Invalid"}},
		{"tls for HTTP, written out", http(tls, field("httpGet.scheme", "HTTP")), []string{"spec.healthCheck.tls: Invalid"}},
		{"tls for plaintext grpc", all(field("grpc", "{}"), tls), []string{"spec.healthCheck.tls: Invalid"}},
		{
			"unknown verification",
			all(tlsTCP, tls, field("tls.verification", "Chain")),
			[]string{"spec.healthCheck.tls.verification: Unsupported"},
		},
		{
			"CA in another group",
			all(tlsTCP, tls, field("tls.caCertificateRefs.0.group", "certificates.k8s.io")),
			[]string{"spec.healthCheck.tls.caCertificateRefs[0].group: Unsupported"},
		},
		{"CA in the core group", all(tlsTCP, tls, text("spec.healthCheck.tls.caCertificateRefs.0.group", "")), nil},
		{
			"no CA",
			all(tlsTCP, tls, field("tls.caCertificateRefs", "[]")),
			[]string{"spec.healthCheck.tls.caCertificateRefs: Invalid"},
		},
		{"8 CAs", all(tlsTCP, tls, field("tls.caCertificateRefs", repeat(8, "{name: ca-%d}"))), nil},
		{
			"9 CAs",
			all(tlsTCP, tls, field("tls.caCertificateRefs", repeat(9, "{name: ca-%d}"))),
			[]string{"spec.healthCheck.tls.caCertificateRefs: Too many"},
		},
		{
			"client certificate without a name",
			all(tlsTCP, tls, field("tls.clientCertificateRef", "{}")),
			[]string{"spec.healthCheck.tls.clientCertificateRef.name: Required"},
		},
		{
			"CA's name that is none",
			all(tlsTCP, tls, field("tls.caCertificateRefs.0.name", "A B")),
			[]string{"spec.healthCheck.tls.caCertificateRefs[0].name: Invalid"},
		},
		{
			"CA's key that is none",
			all(tlsTCP, tls, field("tls.caCertificateRefs.0.key", "a/b")),
			[]string{"spec.healthCheck.tls.caCertificateRefs[0].key: Invalid"},
		},

		{"UDP only, a port given", all(udpOnly, field("tcpSocket", "{port: 8080}")), nil},
		{"UDP only, no port given", all(udpOnly, tcp), []string{"spec.healthCheck: Invalid", "port"}},
		{"UDP only, no port given to grpc", all(udpOnly, field("grpc", "{}")), []string{"spec.healthCheck: Invalid", "port"}},
	}
	for _, check := range []string{"httpGet", "tcpSocket", "grpc"} {
		for _, port := range []string{"1", "65535", "postgres", "metrics"} {
			cases = append(cases, refusal{check + " port " + port, field(check+".port", port), nil})
		}
		for _, port := range []string{"0", "-1", "65536", "other", "'5432'", "''", "Postgres", "99999999999"} {
			cases = append(cases, refusal{
				check + " port " + port,
				field(check+".port", port),
				[]string{"spec.healthCheck." + check + ".port: Invalid"},
			})
		}
	}
	for _, status := range []string{"200", "200-399", "200-200", "100-599"} {
		cases = append(cases, refusal{"status " + status, http(field("httpGet.expectedStatuses", "['"+status+"']")), nil})
	}
	for _, status := range []string{"", "2xx", "99", "600", "200-", "-399", "399-200", "200-600", "200,204", "200 - 399"} {
		cases = append(cases, refusal{
			"status " + status,
			http(field("httpGet.expectedStatuses", "['"+status+"']")),
			[]string{"spec.healthCheck.httpGet.expectedStatuses[0]: "},
		})
	}
	cases = append(cases, bounds("spec.healthCheck.", tcp, []bound{
		{"periodSeconds", 1, 3600},
		{"timeoutSeconds", 1, 3600},
		{"successThreshold", 1, 100},
		{"failureThreshold", 1, 100},
		{"confirmPeriodMilliseconds", 100, 60000},
	})...)
	refusals(t, baseBackend, cases)
}

func TestFailoverRefusals(t *testing.T) {
	cases := []refusal{
		{"empty", set("spec.failover", "{}"), nil},
		{"manual", set("spec.failover.failback", "Manual"), nil},
		{"fail open", set("spec.failover.whenNoTierQualifies", "AllEndpoints"), nil},
		{
			"unknown whenNoTierQualifies",
			set("spec.failover.whenNoTierQualifies", "Panic"),
			[]string{"spec.failover.whenNoTierQualifies: Unsupported"},
		},
		{"unknown failback", set("spec.failover.failback", "Never"), []string{"spec.failover.failback: Unsupported"}},
		{"a pin to a tier without targets", set("spec.failover.pinnedTier", "9"), nil},
	}
	cases = append(cases, bounds("spec.failover.", none, []bound{
		{"minHealthyPercent", 1, 100},
		{"failbackDelaySeconds", 0, 604800},
		{"pinnedTier", 0, 127},
	})...)
	cases = append(cases, bounds("spec.", none, []bound{{"drainSeconds", 0, 604800}})...)
	refusals(t, baseBackend, cases)
}

// bound is a field with the least and the greatest number it takes.
type bound struct {
	field       string
	least, most int
}

// bounds tries both ends of each bound, and one beyond.
func bounds(parent string, base mutation, bs []bound) (cases []refusal) {
	for _, b := range bs {
		path := parent + b.field
		for _, tc := range []struct {
			value      int
			wantErrors []string
		}{{b.least, nil}, {b.most, nil}, {b.least - 1, []string{path + ": Invalid"}}, {b.most + 1, []string{path + ": Invalid"}}} {
			cases = append(
				cases,
				refusal{fmt.Sprint(b.field, " ", tc.value), all(base, set(path, fmt.Sprint(tc.value))), tc.wantErrors},
			)
		}
	}
	return cases
}

// The largest object that the schema lets pass stays inside the API server's
// budget for evaluating rules.
func TestLargest(t *testing.T) {
	label := strings.Repeat("a", 57)
	ports := repeat(100, "{name: "+label+"%02[1]d, port: %[1]d1, nodePort: 3%04[1]d, protocol: TCP}")
	overrides := strings.ReplaceAll(repeat(10, "{name: "+label+"%02[1]d, targetPort: %[1]d1}"), "\n- ", ", ")
	overrides = "[" + strings.TrimSpace(strings.TrimPrefix(overrides, "- ")) + "]"
	hostname := strings.Repeat(label+".", 4)
	targets := repeat(
		1024,
		"{name: "+label+"%[1]d, hostname: "+hostname+"t%[1]d, nodeName: "+label+", zone: "+label+", ports: "+overrides+"}",
	)
	refusals(t, baseBackend, []refusal{{"accepted", all(
		set("spec.service", "{type: NodePort, externalTrafficPolicy: Local, internalTrafficPolicy: Local}"),
		set("spec.ports", ports), set("spec.targets", targets),
		set("spec.healthCheck.httpGet.port", label+"99"),
		set("spec.dns", "{nameservers: ["+strings.Repeat("'[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535',", 8)+"]}"),
	), nil}})
}
