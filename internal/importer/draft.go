package importer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	sigsjson "sigs.k8s.io/json"

	"github.com/external-backend/operator/api/v1alpha1"
)

// draft is the ExternalBackend that a source becomes.
type draft struct {
	Result
	options Options
	spec    *v1alpha1.ExternalBackendSpec
	names   map[string]bool // of targets
	// appProtocols are those of the Service's ports, by keyOfPort.
	appProtocols map[string]string
	dropped      int // targets beyond maxTargets
	unreadable   bool
}

func newDraft(u *unstructured.Unstructured, o Options) *draft {
	namespace := cmp.Or(u.GetNamespace(), o.Namespace)
	b := &v1alpha1.ExternalBackend{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExternalBackend"},
		ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), Namespace: namespace},
	}
	source := u.GetKind() + " " + clip(cmp.Or(namespace, "default")+"/"+u.GetName())
	return &draft{
		Result: Result{Source: source, Backend: b}, options: o, spec: &b.Spec, names: map[string]bool{},
	}
}

// refuse says why a field of the source can't be expressed.
func (d *draft) refuse(field, format string, args ...any) {
	d.Refusals = append(d.Refusals, Refusal{d.Source, field, fmt.Sprintf(format, args...)})
}

// refuseIf refuses a field if it is set.
func (d *draft) refuseIf(set bool, field, why string) {
	if set {
		d.refuse(field, "%s", why)
	}
}

func (d *draft) note(format string, args ...any) {
	d.Notes = append(d.Notes, fmt.Sprintf(format, args...))
}

// fail refuses a field without which the source can't be read.
func (d *draft) fail(field, format string, args ...any) {
	d.refuse(field, format, args...)
	d.Incomplete, d.unreadable = "it can't be read", true
}

// finish checks what concerns the whole, and bounds what is said.
func (d *draft) finish() Result {
	name := cmp.Or(d.options.Name, d.Backend.Name)
	if !backendName.MatchString(name) || len(name) > validation.DNS1035LabelMaxLength {
		d.refuse("metadata.name", "%q must be a DNS label that begins with a letter; choose another one by --name", clip(name))
		name = "imported"
	}
	d.rename(name)
	if d.spec.HealthCheck == nil {
		d.Next = slices.DeleteFunc(d.Next, func(step string) bool { return step == stepLetCheckDecide })
	}
	if len(d.spec.Ports) == 0 {
		d.Incomplete = "it has no port"
		if !slices.ContainsFunc(d.Refusals, func(r Refusal) bool { return strings.HasPrefix(r.Field, "spec.ports") }) {
			d.refuse("spec.ports", "an ExternalBackend wants a port")
		}
	}
	if d.dropped > 0 {
		d.refuse("targets", "there are %d more than the %d that an ExternalBackend can have", d.dropped, maxTargets)
	}
	return d.bounded()
}

// bounded returns the result with a bounded number of refusals and notes.
func (d *draft) bounded() Result {
	if len(d.Refusals) > maxRemarks {
		more := len(d.Refusals) - maxRemarks
		d.Refusals = append(d.Refusals[:maxRemarks], Refusal{d.Source, "…", fmt.Sprintf("%d more fields are refused", more)})
	}
	if len(d.Notes) > maxRemarks {
		d.Notes = append(d.Notes[:maxRemarks], fmt.Sprintf("and %d more notes", len(d.Notes)-maxRemarks))
	}
	return d.Result
}

// stepLetCheckDecide is the last step with a check, which begins in mode Observe.
const stepLetCheckDecide = "When HEALTHY has been True for a day, remove healthCheck.mode."

// rename gives the ExternalBackend its name. A Service that is adopted keeps its own.
func (d *draft) rename(name string) {
	s := d.spec.Service
	if s != nil && s.AdoptionPolicy == v1alpha1.AdoptionPolicyIfSelectorless && name != d.Backend.Name {
		s.Name = d.Backend.Name
		if !backendName.MatchString(s.Name) || len(s.Name) > validation.DNS1035LabelMaxLength {
			s.Name = ""
			d.refuse("metadata.name", "a Service whose name begins with a digit can't be adopted")
		}
	}
	for i := range d.Next {
		d.Next[i] = strings.NewReplacer("{NAME}", name, "{NAMESPACE}", d.Backend.Namespace).Replace(d.Next[i])
	}
	d.Backend.Name = name
}

// backendName is what the name of an ExternalBackend, and of its Service, looks like.
var backendName = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)

// addPort adds a port to the Service. It reports whether it could.
func (d *draft) addPort(field string, p v1alpha1.Port) bool {
	switch {
	case len(d.spec.Ports) == maxPorts:
		d.refuse(field, "an ExternalBackend has at most %d ports", maxPorts)
	case !isPort(p.Port) || p.TargetPort != 0 && !isPort(p.TargetPort):
		d.refuse(field, "its numbers must be 1 to 65535")
	case p.Name != "" && len(validation.IsDNS1123Label(p.Name)) > 0:
		d.refuse(field+".name", "%q must be a DNS label", clip(p.Name))
	case !slices.Contains([]corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, p.Protocol):
		d.refuse(field+".protocol", "%q must be TCP, UDP or SCTP", clip(string(p.Protocol)))
	case p.AppProtocol != nil && (len(*p.AppProtocol) > 317 || !qualifiedName.MatchString(*p.AppProtocol)):
		d.refuse(field+".appProtocol", "%q must be a qualified name", clip(*p.AppProtocol))
	case slices.ContainsFunc(d.spec.Ports, func(q v1alpha1.Port) bool { return q.Name == p.Name || sameNumber(&q, &p) }):
		d.refuse(field, "another port has the same name, or the same number and protocol")
	case len(d.spec.Ports) > 0 && (p.Name == "" || d.spec.Ports[0].Name == ""):
		d.refuse(field+".name", "a port needs a name where it is not the only one")
	default:
		if p.TargetPort == p.Port {
			p.TargetPort = 0
		}
		if p.Protocol == corev1.ProtocolTCP {
			p.Protocol = ""
		}
		d.spec.Ports = append(d.spec.Ports, p)
		return true
	}
	return false
}

// qualifiedName is what the schema wants of appProtocol.
var qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

func isPort(n int32) bool { return n >= 1 && n <= 65535 }

func sameNumber(a, b *v1alpha1.Port) bool {
	return a.Port == b.Port && a.EffectiveProtocol() == b.EffectiveProtocol()
}

// addTarget adds a target at an address or a host name. It makes its name from wish, or else from
// where it is. field is the field that where comes from.
func (d *draft) addTarget(field, wish, where string, t v1alpha1.Target) bool {
	if addr, err := netip.ParseAddr(where); err == nil {
		if !usable(addr) {
			d.refuse(field, "%q: %s", clip(where), unusable)
			return false
		}
		t.Address = addr.String()
	} else {
		host := strings.ToLower(strings.TrimSuffix(where, "."))
		if !isHostname(host) {
			d.refuse(field, "%q must be an IP address, or a host name of two labels or more", clip(where))
			return false
		}
		t.Hostname = host
	}
	if t.Zone != "" && (len(t.Zone) > 63 || !zoneName.MatchString(t.Zone)) {
		d.refuse(field, "its zone %q must be a label value", clip(t.Zone))
		t.Zone = ""
	}
	if t.NodeName != "" && len(validation.IsDNS1123Subdomain(t.NodeName)) > 0 {
		d.refuse(field, "its node %q must be a DNS subdomain", clip(t.NodeName))
		t.NodeName = ""
	}
	if len(d.spec.Targets) == maxTargets {
		d.dropped++
		return false
	}
	t.Name = d.uniqueName(wish, cmp.Or(t.Address, t.Hostname))
	d.spec.Targets = append(d.spec.Targets, t)
	return true
}

var (
	zoneName    = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	looksLikeIP = regexp.MustCompile(`\.([0-9]+|0x[0-9a-f]*)$`)
)

// unusable says why the API server refuses an address.
const unusable = "it is a loopback, link-local, multicast, broadcast, unspecified or IPv4-mapped address"

// usable reports whether the API server takes an address as that of a target.
func usable(addr netip.Addr) bool {
	return addr.Zone() == "" && !addr.Is4In6() && addr.IsGlobalUnicast()
}

func isHostname(host string) bool {
	return strings.Contains(host, ".") && len(validation.IsDNS1123Subdomain(host)) == 0 &&
		!looksLikeIP.MatchString(host) &&
		!slices.ContainsFunc(strings.Split(host, "."), func(label string) bool { return len(label) > 63 })
}

// uniqueName returns a name for a target that no other one has.
func (d *draft) uniqueName(wish, where string) string {
	base := wish
	if len(validation.IsDNS1123Label(base)) > 0 {
		base = strings.Trim(notInLabel.ReplaceAllString(where, "-"), "-")
		if _, err := netip.ParseAddr(where); err == nil {
			base = "ip-" + base
		}
		if len(base) > 63 {
			base = strings.Trim(base[:63], "-")
		}
	}
	name := base
	for i := 2; d.names[name]; i++ {
		suffix := "-" + strconv.Itoa(i)
		name = strings.TrimRight(base[:min(len(base), 63-len(suffix))], "-") + suffix
	}
	d.names[name] = true
	return name
}

var notInLabel = regexp.MustCompile(`[^a-z0-9]+`)

// observe adds a check of the first TCP port that only observes.
func (d *draft) observe() {
	isTCP := func(p v1alpha1.Port) bool { return p.EffectiveProtocol() == corev1.ProtocolTCP }
	if slices.ContainsFunc(d.spec.Ports, isTCP) {
		d.spec.HealthCheck = &v1alpha1.HealthCheck{
			Mode: v1alpha1.HealthCheckModeObserve, TCPSocket: &v1alpha1.TCPSocket{},
		}
		return
	}
	if len(d.spec.Ports) > 0 {
		d.note("No port is TCP, so there is no health check.")
	}
}

// service returns the part of the spec about the Service.
func (d *draft) service() *v1alpha1.Service {
	if d.spec.Service == nil {
		d.spec.Service = &v1alpha1.Service{}
	}
	return d.spec.Service
}

// decode decodes an object. unknown are its fields that out does not have. Status, and what the API
// server manages, is not looked at.
func decode(u *unstructured.Unstructured, out any) (unknown []string, err error) {
	content := maps.Clone(u.Object)
	delete(content, "status")
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	strict, err := sigsjson.UnmarshalStrict(data, out)
	for _, e := range strict {
		unknown = append(unknown, e.Error())
	}
	return unknown, err
}

// read decodes the source, and refuses the fields that are not known. It fails if a field has a
// wrong type.
func (d *draft) read(u *unstructured.Unstructured, out any) bool {
	unknown, err := decode(u, out)
	d.Refusals = append(d.Refusals, refuseUnknown(d.Source, unknown)...)
	if err != nil {
		field, why := wrongField(err)
		d.fail(field, "%s", why)
	}
	return err == nil
}

// wrongField says which field can't be decoded, and what it must be. The field is "" if the decoder
// does not name it.
func wrongField(err error) (field, why string) {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok || wrong.Field == "" {
		return "", "it can't be read: " + clipTo(err.Error(), 3*maxText)
	}
	must := "a number"
	switch wrong.Type.Kind() {
	case reflect.Bool:
		must = "true or false"
	case reflect.String:
		must = "a string"
	case reflect.Slice:
		must = "a list"
	case reflect.Map, reflect.Struct:
		must = "an object"
	}
	return clip(wrong.Field), fmt.Sprintf("it must be %s, and is of type %s", must, clip(wrong.Value))
}

// refuseUnknown refuses fields of an object. A text of unknown is: unknown field "spec.x".
func refuseUnknown(object string, unknown []string) []Refusal {
	var out []Refusal
	for _, text := range unknown {
		field := strings.TrimSuffix(strings.TrimPrefix(text, `unknown field "`), `"`)
		out = append(out, Refusal{object, clip(field), "the importer does not know this field"})
	}
	return out
}

// clip bounds a text from outside, and makes it printable.
func clip(text string) string { return clipTo(text, maxText) }

func clipTo(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "…"
	}
	return text
}
