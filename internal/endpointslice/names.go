package endpointslice

import (
	"encoding/base32"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// namer gives the new slices of a group their names, with the lowest free numbers. So a creation
// that is repeated because of a stale cache collides with the first one.
type namer struct {
	planner *planner
	group   *group
	prefix  string
	number  int
}

// The lengths of the parts of a name: of its 63 characters the backend's name gets those that
// "-v4-", the hash, "-" and six digits leave.
const (
	nameHashLength    = 10
	nameBackendLength = 63 - len("-v4-") - nameHashLength - len("-") - 6
)

// next returns the next free name.
func (n *namer) next() string {
	p := n.planner
	if n.prefix == "" {
		n.prefix = slicePrefix(p.template.Backend, n.group.family, n.group.key)
	}
	if p.names == nil {
		p.names = make(map[string]bool, len(p.existing)+len(p.template.Taken))
		maps.Copy(p.names, p.template.Taken)
		for _, s := range p.existing {
			p.names[s.Name] = true
		}
	}
	for {
		name := n.prefix + strconv.Itoa(n.number)
		n.number++
		if !p.names[name] {
			p.names[name] = true
			return name
		}
	}
}

// familyMarks are the address families in the names of slices.
var familyMarks = map[discoveryv1.AddressType]string{
	discoveryv1.AddressTypeIPv4: "v4",
	discoveryv1.AddressTypeIPv6: "v6",
	discoveryv1.AddressTypeFQDN: "fqdn",
}

// slicePrefix is what the names of a group's slices begin with. The hash has a fixed length and
// covers the whole name of the backend. So the names of two backends' slices never collide, even if
// one backend has the name of the other's slice.
func slicePrefix(backend string, family discoveryv1.AddressType, key string) string {
	h := fnv.New64a()
	h.Write([]byte(backend))
	h.Write([]byte{0})
	h.Write([]byte(key))
	hash := base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil))[:nameHashLength]
	return backend[:min(len(backend), nameBackendLength)] + "-" + familyMarks[family] + "-" +
		strings.ToLower(hash) + "-"
}
