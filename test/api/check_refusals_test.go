package api

import (
	"strings"
	"testing"
)

// The schema refuses each invalid dns, and names the field.
func TestInvalidDNSIsRefused(t *testing.T) {
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

// The schema refuses each invalid healthCheck, and names the field.
func TestInvalidHealthChecksAreRefused(t *testing.T) {
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

// The schema refuses each invalid failover, and names the field.
func TestInvalidFailoverIsRefused(t *testing.T) {
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
