package security

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// overlay installs the component as a user does, with the cluster's ranges and an exempt namespace.
const overlay = `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s/default]
components: [%[1]s/policy]
patches:
- target: {kind: ConfigMap, name: literal-targets}
  patch: |
    - {op: replace, path: /data/clusterCIDRs, value: "10.96.0.0/16, 10.244.0.0/16"}
    - {op: replace, path: /data/exemptNamespaces, value: "%[2]s"}
`

// dryRun creates a changed ExternalBackend with one allowed target, as a dry run.
func dryRun(h *harness.Test, namespace string, change func(*v1alpha1.ExternalBackendSpec)) error {
	b := newBackend("tried", handlers[0])
	b.Namespace = namespace
	b.Spec.Targets = []v1alpha1.Target{{Name: "t0", Address: "198.18.0.1"}}
	change(&b.Spec)
	return h.Client.Create(context.Background(), b, client.DryRunAll)
}

// literal returns a change that adds a target with this address.
func literal(address string) func(*v1alpha1.ExternalBackendSpec) {
	return func(s *v1alpha1.ExternalBackendSpec) {
		s.Targets = append(s.Targets, v1alpha1.Target{Name: "t1", Address: address})
	}
}

// With the admission policy, the API server refuses the targets that the controller would deny, and
// nothing else.
func TestAdmissionRefusesWhatTheControllerDenies(t *testing.T) {
	h, exempt := harness.New(t), harness.New(t)
	// Labels, status and deletion of an object that was accepted before can still be written.
	before := newBackend("before", handlers[0])
	before.Namespace = h.Namespace
	before.Spec.Targets = []v1alpha1.Target{{Name: "t1", Address: "10.96.0.7"}}
	if err := h.Client.Create(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	installAdmission(h, exempt.Namespace)

	nameserver := func(at string) func(*v1alpha1.ExternalBackendSpec) {
		return func(s *v1alpha1.ExternalBackendSpec) {
			s.DNS = &v1alpha1.DNS{Nameservers: []string{"198.18.0.53", at}}
		}
	}
	h.Eventually("the policy to take effect", func() error {
		if err := dryRun(h, h.Namespace, literal("10.96.0.7")); !apierrors.IsForbidden(err) {
			return fmt.Errorf("an address of the cluster: %v", err)
		}
		return nil
	})
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.ExternalBackendSpec)
		want   string // part of the refusal; "": accepted
		exempt bool   // accepted in the exempt namespace
	}{
		{"public", literal("198.18.0.2"), "", true},
		{"pod", literal("10.244.0.9"), "target t1 has an address of this cluster", true},
		{"metadata", literal("100.100.100.200"), "target t1 has a cloud metadata address", true},
		{"NAT64 of loopback", literal("64:ff9b::7f00:1"), "target t1 has, or embeds", false},
		{"6to4 of link-local", literal("2002:a9fe:a9fe::1"), "target t1 has, or embeds", false},
		{"this network", literal("0.1.2.3"), "target t1 has, or embeds", false},
		{"nameserver", nameserver("198.18.0.54:5353"), "", true},
		{"ClusterIP as nameserver", nameserver("10.96.0.10:53"), "a nameserver has an address of this cluster", true},
		{"link-local nameserver", nameserver("169.254.20.10"), "a nameserver has, or embeds", false},
		{"alias of the cluster's name", func(s *v1alpha1.ExternalBackendSpec) {
			s.Service = &v1alpha1.Service{Type: v1alpha1.ServiceTypeExternalName}
			s.Targets = []v1alpha1.Target{{Name: "t1", Hostname: "db.other.svc.cluster.local"}}
		}, "target t1 has a name of this cluster", false},
	} {
		wantExempt := tc.want
		if tc.exempt {
			wantExempt = ""
		}
		for namespace, want := range map[string]string{h.Namespace: tc.want, exempt.Namespace: wantExempt} {
			err := dryRun(h, namespace, tc.change)
			refused := apierrors.IsForbidden(err) && strings.Contains(err.Error(), want)
			if want == "" && err != nil || want != "" && !refused {
				t.Errorf("%s in %s: %v; want %q", tc.name, namespace, err, want)
			}
		}
	}

	h.StartManager()
	h.WaitCondition("before", v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
	labelled := h.Backend("before")
	metav1.SetMetaDataLabel(&labelled.ObjectMeta, "team", "shop")
	labelled.Finalizers = append(labelled.Finalizers, "example.com/hold")
	if err := h.Client.Update(t.Context(), labelled); err != nil {
		t.Errorf("labels and finalizers: %v", err)
	}
	changed := labelled.DeepCopy()
	changed.Spec.Targets[0].Address = "10.96.0.8"
	if err := h.Client.Update(t.Context(), changed); !apierrors.IsForbidden(err) {
		t.Errorf("another address of the cluster: %v", err)
	}
	labelled.Finalizers = nil
	if err := h.Client.Update(t.Context(), labelled); err != nil {
		t.Errorf("finalizers: %v", err)
	}
	if err := h.Client.Delete(t.Context(), labelled); err != nil {
		t.Errorf("deletion: %v", err)
	}
}

// installAdmission applies the component, and deletes it when the test ends.
func installAdmission(h *harness.Test, exempt string) {
	h.T.Helper()
	config, err := filepath.Abs("../../config")
	dir := h.T.TempDir()
	relative, errRel := filepath.Rel(dir, config)
	err = errors.Join(err, errRel,
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, overlay, relative, exempt), 0o600))
	if err == nil {
		_, err = h.Kubectl(h.T.Context(), "apply", "--server-side", "-k", dir)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() {
		for _, kind := range []string{"validatingadmissionpolicybinding", "validatingadmissionpolicy"} {
			if _, err := h.Kubectl(context.Background(), "delete", kind, "literal-targets"); err != nil {
				h.T.Error(err)
			}
		}
		h.Eventually("the policy to be gone",
			func() error { return dryRun(h, metav1.NamespaceDefault, literal("10.96.0.7")) })
	})
}
