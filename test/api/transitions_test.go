package api

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// An update may change everything but the Service that an ExternalBackend publishes.
func TestOnlyAllowedChangesAreAccepted(t *testing.T) {
	const (
		switched = "can't change between service and serviceRef"
		renamed  = "the effective Service name is immutable"
	)
	absent := unset("spec.service")
	service := func(document string) mutation { return set("spec.service", document) }
	ref := func(name string) mutation { return all(absent, set("spec.serviceRef.name", name)) }
	own := service("{name: from}") // the name of the ExternalBackend itself
	for _, tc := range []struct {
		desc       string
		from, to   mutation
		wantErrors []string
	}{
		{"service added with defaults", absent, service("{}"), nil},
		{"service removed", service("{}"), absent, nil},
		{"the name written out", absent, own, nil},
		{"the written name removed", own, service("{}"), nil},
		{"service with its own name removed", own, absent, nil},
		{"another name", absent, service("{name: to}"), []string{"spec.service.name: Invalid", renamed}},
		{"another name in place of a written one", service("{name: to}"), service("{name: other}"),
			[]string{"spec.service.name: Invalid", renamed}},
		{"another name given up", service("{name: to}"), service("{}"), []string{"spec.service.name: Invalid", renamed}},
		{"service with another name removed", service("{name: to}"), absent, []string{"spec.service.name: Invalid", renamed}},
		{"service to serviceRef", service("{}"), ref("from"), []string{"spec.serviceRef: Invalid", switched}},
		{"absent to serviceRef", absent, ref("from"), []string{"spec.serviceRef: Invalid", switched}},
		{"serviceRef to service", ref("from"), all(unset("spec.serviceRef"), service("{}")),
			[]string{"spec.serviceRef: Invalid", switched}},
		{"serviceRef to absent", ref("from"), unset("spec.serviceRef"), []string{"spec.serviceRef: Invalid", switched}},
		{"another serviceRef", ref("to"), ref("other"), []string{"spec.serviceRef.name: Invalid", renamed}},
		{"a bad rename is not hidden by the rest", absent,
			all(service("{name: to, type: Headless}"), set("spec.drainSeconds", "5")), []string{"spec.service.name: Invalid"}},

		{"everything but the name", own, all(
			service("{name: from, type: Headless, labels: {a: b}, publishNotReadyAddresses: true}"),
			set("spec.ports", "[{port: 80}]"), set("spec.targets", "[{name: a, address: 203.0.113.9}]"),
			set("spec.healthCheck.tcpSocket", "{}"), set("spec.dns.transport", "TCP"), set("spec.failover.pinnedTier", "1"),
		), nil},
		{"ClusterIP to ExternalName", service("{}"),
			all(service("{type: ExternalName}"), set("spec.targets", "[{name: a, hostname: a.example.com}]")), nil},
		{"address to hostname", absent, set("spec.targets", "[{name: primary, hostname: a.example.com}]"), nil},
		{"one check to another", set("spec.healthCheck.tcpSocket", "{}"),
			all(set("spec.healthCheck.httpGet", "{}"), unset("spec.healthCheck.tcpSocket")), nil},
	} {
		t.Run(tc.desc, func(t *testing.T) {
			u := object(t, baseBackend)
			u.SetName("from")
			tc.from(t, u)
			if err := api.Create(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := api.Delete(t.Context(), u); err != nil {
					t.Error(err)
				}
			}()
			changed := u.DeepCopy()
			tc.to(t, changed)
			check(t, api.Update(t.Context(), changed, client.DryRunAll), tc.wantErrors)
		})
	}
}

// Under server-side apply, a manifest may lose the last field of a check that it still has, and any
// other object as a whole.
func TestAppliedManifestMayLoseFields(t *testing.T) {
	for _, tc := range []struct{ path, from, to string }{
		{"spec.healthCheck.tcpSocket", "{port: 5432}", "{}"},
		{"spec.healthCheck.httpGet", "{path: /healthz}", "{}"},
		{"spec.healthCheck.grpc", "{service: shop}", "{}"},
		{"spec.healthCheck", "{httpGet: {scheme: HTTPS}, tls: {serverName: a}}", "{httpGet: {}}"},
		{"spec.service", "{type: Headless}", ""},
		{"spec.failover", "{failback: Manual}", ""},
		{"spec.dns", "{transport: TCP}", ""},
	} {
		t.Run(tc.path, func(t *testing.T) {
			u := object(t, baseBackend)
			u.SetName("applied")
			defer func() {
				if err := api.Delete(t.Context(), u); err != nil {
					t.Error(err)
				}
			}()
			for _, document := range []string{tc.from, tc.to} {
				next := object(t, baseBackend)
				next.SetName("applied")
				unset("spec.service")(t, next)
				if document != "" {
					set(tc.path, document)(t, next)
				}
				if err := api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(next), client.FieldOwner("test"),
					client.ForceOwnership); err != nil {
					t.Fatalf("%s %s: %v", tc.path, document, err)
				}
				u = next
			}
		})
	}
}
