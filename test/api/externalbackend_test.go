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

// repeat returns a YAML list of n entries, made from format and a number from 0 on.
func repeat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "- "+format+"\n", i)
	}
	return b.String()
}

// The schema refuses each invalid list of targets, and names the field.
func TestInvalidTargetsAreRefused(t *testing.T) {
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

// bound is a field with its minimum and maximum.
type bound struct {
	field       string
	least, most int
}

// bounds tries the minimum and the maximum of each field, and the numbers beyond them.
func bounds(parent string, base mutation, bs []bound) (cases []refusal) {
	for _, b := range bs {
		path := parent + b.field
		for _, tc := range []struct {
			value      int
			wantErrors []string
		}{
			{b.least, nil}, {b.most, nil},
			{b.least - 1, []string{path + ": Invalid"}}, {b.most + 1, []string{path + ": Invalid"}},
		} {
			cases = append(
				cases,
				refusal{fmt.Sprint(b.field, " ", tc.value), all(base, set(path, fmt.Sprint(tc.value))), tc.wantErrors},
			)
		}
	}
	return cases
}

// The largest object that the schema accepts stays within the API server's budget for rules.
func TestLargestObjectFitsRuleBudget(t *testing.T) {
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
