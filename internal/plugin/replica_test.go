package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/external-backend/operator/internal/fleet"
	"github.com/external-backend/operator/internal/view"
)

// leaseOf returns the Lease of a replica, which was renewed some time before now.
func leaseOf(replica string, before time.Duration) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "operators", Name: fleet.LeaseName(replica), Labels: map[string]string{fleet.LabelReplica: "true"},
	}}
	lease.Spec.HolderIdentity = new(replica + "_1")
	lease.Spec.RenewTime = &metav1.MicroTime{Time: testNow.Add(-before)}
	return lease
}

// shown returns what `status db` prints in a cluster with these Leases. They can't be listed if
// forbidden.
func shown(t *testing.T, o *view.Objects, format string, forbidden bool, leases ...*coordinationv1.Lease) string {
	t.Helper()
	builder := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(o.Backend, o.Service, o.Namespace)
	for _, slice := range o.Slices {
		builder.WithObjects(slice)
	}
	for _, lease := range leases {
		builder.WithObjects(lease)
	}
	for _, field := range []string{"regarding.kind", "regarding.name"} {
		builder.WithIndex(&eventsv1.Event{}, field, func(client.Object) []string { return nil })
	}
	c := interceptor.NewClient(builder.Build(), interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
	) error {
		if _, ok := list.(*coordinationv1.LeaseList); ok && forbidden {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("no"))
		}
		return c.List(ctx, list, options...)
	}})

	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	p := newPlugin(streams, "test")
	p.now = func() time.Time { return testNow }
	key := types.NamespacedName{Namespace: "shop", Name: "db"}
	options := statusOptions{format: format, managerNamespace: "operators"}
	if err := p.showBackend(t.Context(), c, key, options); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestStatusShowsReplica: the replica that works for the ExternalBackend follows from the Leases
// of those that live, for people and for programs. Leases of others don't count.
func TestStatusShowsReplica(t *testing.T) {
	w := world{spec: threeTargets, verdicts: allHealthy()}
	other := leaseOf("other", 0)
	other.Labels = nil
	elsewhere := leaseOf("elsewhere", 0)
	elsewhere.Namespace = "default"
	dead := leaseOf("manager-7c9d4b-2xkqp", 2*time.Minute)
	leases := []*coordinationv1.Lease{leaseOf("manager-7c9d4b-fm8zt", 4*time.Second), dead, other, elsewhere}

	golden(t, "status-replica", shown(t, w.objects(t), "", false, leases...))
	var b view.Backend
	if err := json.Unmarshal([]byte(shown(t, w.objects(t), "json", false, leases...)), &b); err != nil {
		t.Fatal(err)
	}
	want := view.Replica{Name: "manager-7c9d4b-fm8zt", Namespace: "operators"}
	if b.Replica == nil || *b.Replica != want {
		t.Errorf("the replica is %+v, want %+v", b.Replica, want)
	}
}

// TestReplicaIsTheServices: ExternalBackends behind one Service have one replica.
func TestReplicaIsTheServices(t *testing.T) {
	leases := []coordinationv1.Lease{*leaseOf("a", 0), *leaseOf("b", 0), *leaseOf("c", 0)}
	c := fake.NewClientBuilder().WithScheme(newScheme()).WithLists(&coordinationv1.LeaseList{Items: leases}).Build()
	p := &plugin{now: func() time.Time { return testNow }}
	found := map[string]bool{}
	for _, service := range []string{"web", "orders", "cart", "search", "mail"} {
		b := view.Backend{Namespace: "shop", Name: "db", Service: view.Service{Name: service}}
		p.findReplica(t.Context(), c, "operators", &b)
		want := fleet.OwnerByLeases(leases, types.NamespacedName{Namespace: "shop", Name: service}, testNow)
		if b.Replica.Name != want {
			t.Errorf("behind Service %s it is %s, want %s", service, b.Replica.Name, want)
		}
		found[want] = true
	}
	if len(found) < 2 {
		t.Errorf("one replica has all: %v", found)
	}
}

// TestUnknownReplicaHasCause: who may not list the Leases learns which right is missing. Else the
// screen says that no replica is live.
func TestUnknownReplicaHasCause(t *testing.T) {
	w := world{spec: threeTargets, verdicts: allHealthy()}
	for _, test := range []struct {
		forbidden bool
		want      []string
	}{
		{true, []string{
			"\nReplica    unknown\n",
			"\nLeases   you may not list leases.coordination.k8s.io in namespace operators\n",
		}},
		{false, []string{"\nReplica    unknown, no replica has a live Lease in namespace operators\n"}},
	} {
		text := shown(t, w.objects(t), "", test.forbidden, leaseOf("dead", 2*time.Minute))
		for _, want := range test.want {
			if !strings.Contains(text, want) {
				t.Errorf("forbidden %t: %q is missing in\n%s", test.forbidden, want, text)
			}
		}
	}
}
