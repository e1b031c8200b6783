package controllers

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

const literalSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}},
	targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2}]}`

const tieredSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}},
	failover: {failbackDelaySeconds: 0},
	targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2, tier: 1}]}`

const poolSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}},
	targets: [{name: pool, hostname: pool.example.com}]}`

// The three ways in which an ExternalBackend can have a Service.
const (
	created   = "{ports"
	adopting  = "{service: {adoptionPolicy: IfSelectorless}, ports"
	attaching = "{serviceRef: {name: shop}, ports"
)

// specWith is literalSpec with a Service of one of these kinds.
func specWith(way string) string { return strings.Replace(literalSpec, "{ports", way, 1) }

// literalEnv returns a testEnv in which literalSpec is published and healthy.
func literalEnv(t *testing.T) *testEnv {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(literalSpec)
	env.settle()
	return env
}

// addresses returns 203.0.113.from to to-1.
func addresses(from, to int) []resolve.Addr {
	var out []resolve.Addr
	for i := from; i < to; i++ {
		out = append(out, resolve.Addr{IP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})})
	}
	return out
}

// setAnswer makes pool.example.com resolve to the addresses 203.0.113.from to to-1.
func setAnswer(from, to int) func(*testEnv) {
	return func(env *testEnv) {
		env.resolver.known = map[string]resolve.Answer{
			"pool.example.com": {Status: resolve.Current, Addrs: addresses(from, to)},
		}
	}
}

// setVerdict sets the verdict of the probes of the addresses 203.0.113.from to to-1.
func setVerdict(v probe.Verdict, from, to int) func(*testEnv) {
	return func(env *testEnv) {
		if env.prober.verdicts == nil {
			env.prober.verdicts = map[netip.Addr]probe.Verdict{}
		}
		for _, a := range addresses(from, to) {
			env.prober.verdicts[a.IP] = v
		}
	}
}

func spec(text string) func(*testEnv) { return func(env *testEnv) { env.spec(text) } }

// selectorlessService returns a Service without an owner that fits literalSpec.
func selectorlessService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: shop.Name, Namespace: shop.Namespace, UID: "uid-of-service"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.7", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// theirService returns a Service of somebody else, for serviceRef.
func theirService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: shop.Namespace, UID: "uid-of-theirs"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// attachedBackend returns an ExternalBackend that attaches to a Service.
func attachedBackend(name, service string) *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: shop.Namespace, UID: types.UID("uid-of-" + name)},
	}
	b.Spec.ServiceRef = &v1alpha1.ServiceReference{Name: service}
	return b
}

// leftBy returns a Service and a slice that an ExternalBackend which is gone has left behind it.
// The slice belongs to the Service. It has one address that shop has, and one that it has not.
func leftBy(former, name string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	service := selectorlessService()
	service.Name, service.Labels = name, map[string]string{v1alpha1.LabelName: former}
	ready := discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
	return service, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: former + "-v4-x-0", Namespace: shop.Namespace, UID: "uid-of-left-slice",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelName: former,
			},
			Annotations: map[string]string{"external-backend.io/endpoints": ""},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service")),
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)},
		},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"203.0.113.1"}, Conditions: ready},
			{Addresses: []string{"203.0.113.9"}, Conditions: ready},
		},
	}
}

// asRestored returns an object as a backup tool restores it: without its owners and with another
// UID.
func asRestored[T client.Object](o T, uid types.UID) T {
	o.SetOwnerReferences(nil)
	o.SetUID(uid)
	o.SetResourceVersion("")
	return o
}

// invalidError is the API server's answer to an object that can't become valid by itself.
func invalidError(o client.Object) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: "X"}, o.GetName(), nil)
}

// forbiddenError is the answer of a quota or a webhook that refuses.
func forbiddenError(o client.Object) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, o.GetName(),
		errors.New("denied the request"))
}

// refuseServices refuses every write of a Service.
func refuseServices(o client.Object) error {
	if _, ok := o.(*corev1.Service); ok {
		return invalidError(o)
	}
	return nil
}

// refuseNewSlices refuses every creation of a slice, as a quota does.
func refuseNewSlices(o client.Object) error {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.UID == "" {
		return apierrors.NewForbidden(schema.GroupResource{}, s.Name, errors.New("exceeded quota"))
	}
	return nil
}
