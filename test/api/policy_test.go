package api

import (
	"strings"
	"testing"
)

const basePolicy = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackendPolicy
metadata: {name: shop}
spec:
  namespaceSelector: {matchLabels: {team: shop}}
  allow:
  - cidrs: [203.0.113.0/24, "2001:db8::/32"]
    hostnames: [db.example.com, "*.db.example.com"]
    ports: [{protocol: TCP, port: 5432, endPort: 5440}]
  - anyTarget: {}
  allowNameservers: ["198.51.100.53"]
`

// The schema refuses each invalid policy, and names the field.
func TestInvalidPoliciesAreRefused(t *testing.T) {
	refusals(t, basePolicy, []refusal{
		{"as documented", none, nil},
		{"nothing allowed", unset("spec.allow"), nil},
		{"nothing but nameservers", unset("spec.allow"), nil},
		{"an empty list of rules", set("spec.allow", "[]"), []string{"spec.allow: Invalid"}},
		{"an empty rule", set("spec.allow", "[{}]"), []string{"spec.allow[0]: Invalid", "anyTarget"}},
		{"ports alone", set("spec.allow", "[{ports: [{port: 53}]}]"), []string{"spec.allow[0]: Invalid", "anyTarget"}},
		{"anyTarget beside cidrs", set("spec.allow.0.anyTarget", "{}"), []string{"spec.allow[0]: Invalid", "anyTarget"}},
		{"anyTarget with ports", set("spec.allow.1.ports", "[{port: 53}]"), nil},
		{"cidrs alone", set("spec.allow", "[{cidrs: [203.0.113.0/24]}]"), nil},
		{"hostnames alone", set("spec.allow", "[{hostnames: [db.example.com]}]"), nil},
		{"no CIDRs", set("spec.allow.0.cidrs", "[]"), []string{"spec.allow[0].cidrs: Invalid"}},
		{"no hostnames", set("spec.allow.0.hostnames", "[]"), []string{"spec.allow[0].hostnames: Invalid"}},
		{"no ports", set("spec.allow.0.ports", "[]"), []string{"spec.allow[0].ports: Invalid"}},
		{"no nameservers", set("spec.allowNameservers", "[]"), []string{"spec.allowNameservers: Invalid"}},
		{"a CIDR with host bits", set("spec.allow.0.cidrs", "[203.0.113.1/24]"),
			[]string{"spec.allow[0].cidrs[0]: Invalid", "no bit set beyond"}},
		{"a CIDR of one address", set("spec.allow.0.cidrs", "[203.0.113.1/32, '2001:db8::1/128']"), nil},
		{"every namespace", set("spec.namespaceSelector", "{}"), nil},
		{"no selector", unset("spec.namespaceSelector"), []string{"spec.namespaceSelector: Required"}},
		{
			"selector by expression",
			set("spec.namespaceSelector",
				"{matchExpressions: [{key: team, operator: In, values: [a, b]}, {key: x, operator: Exists}]}"),
			nil,
		},
		{"selector with an unknown operator",
			set("spec.namespaceSelector", "{matchExpressions: [{key: team, operator: Is, values: [a]}]}"),
			[]string{"spec.namespaceSelector: Invalid"}},
		{"selector In without values", set("spec.namespaceSelector", "{matchExpressions: [{key: team, operator: In}]}"),
			[]string{"spec.namespaceSelector: Invalid"}},
		{"selector Exists with values",
			set("spec.namespaceSelector", "{matchExpressions: [{key: team, operator: Exists, values: [a]}]}"),
			[]string{"spec.namespaceSelector: Invalid"}},
		{"audit", set("spec.mode", "Audit"), nil},
		{"unknown mode", set("spec.mode", "Warn"), []string{"spec.mode: Unsupported"}},
		{"an address where a CIDR belongs", set("spec.allow.0.cidrs", "[203.0.113.1]"),
			[]string{"spec.allow[0].cidrs[0]: Invalid"}},
		{"prefix too long", set("spec.allow.0.cidrs", "[203.0.113.0/33]"), []string{"spec.allow[0].cidrs[0]: Invalid"}},
		{"101 CIDRs", set("spec.allow.0.cidrs", "["+strings.Repeat("203.0.113.0/24,", 101)+"]"),
			[]string{"spec.allow[0].cidrs: Too many"}},
		{"srvName among hostnames", set("spec.allow.0.hostnames", "[_ldap._tcp.example.com]"), nil},
		{"wildcard above a top level domain", set("spec.allow.0.hostnames", `["*.internal"]`), nil},
		{"wildcard inside", set("spec.allow.0.hostnames", `["db.*.example.com"]`),
			[]string{"spec.allow[0].hostnames[0]: Invalid"}},
		{"wildcard as a part of a label", set("spec.allow.0.hostnames", `["*db.example.com"]`),
			[]string{"spec.allow[0].hostnames[0]: Invalid"}},
		{"wildcard alone", set("spec.allow.0.hostnames", `["*"]`), []string{"spec.allow[0].hostnames[0]: Invalid"}},
		{"upper case", set("spec.allow.0.hostnames", "[DB.example.com]"), []string{"spec.allow[0].hostnames[0]: Invalid"}},
		{"trailing dot", set("spec.allow.0.hostnames", "[db.example.com.]"), []string{"spec.allow[0].hostnames[0]: Invalid"}},
		{"one label", set("spec.allow.0.hostnames", "[db]"), []string{"spec.allow[0].hostnames[0]: Invalid"}},
		{"a protocol without port", set("spec.allow.0.ports", "[{protocol: UDP}]"),
			[]string{"spec.allow[0].ports[0].port: Required"}},
		{"one port", set("spec.allow.0.ports", "[{port: 53}]"), nil},
		{"range of one", set("spec.allow.0.ports.0.endPort", "5432"), nil},
		{"range that ends too early", set("spec.allow.0.ports.0.endPort", "5431"),
			[]string{"spec.allow[0].ports[0].endPort: Invalid"}},
		{"endPort without port", unset("spec.allow.0.ports.0.port"), []string{"spec.allow[0].ports[0].port: Required"}},
		{"port 0", set("spec.allow.0.ports.0.port", "0"), []string{"spec.allow[0].ports[0].port: Invalid"}},
		{"endPort 65536", set("spec.allow.0.ports.0.endPort", "65536"), []string{"spec.allow[0].ports[0].endPort: Invalid"}},
		{"unknown protocol", set("spec.allow.0.ports.0.protocol", "ICMP"),
			[]string{"spec.allow[0].ports[0].protocol: Unsupported"}},
		{"nameservers of every form",
			set("spec.allowNameservers", `["198.51.100.53", "198.51.100.53:5353", "2001:db8::53", "[2001:db8::53]:53"]`),
			nil},
		{"a nameserver's name", set("spec.allowNameservers", "[dns.example.com]"),
			[]string{"spec.allowNameservers[0]: Invalid"}},
		{"101 rules", set("spec.allow", "["+strings.Repeat("{anyTarget: {}},", 101)+"]"), []string{"spec.allow: Too many"}},
	})
}
