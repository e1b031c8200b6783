package endpointslice

import (
	"encoding/base32"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// The lengths of the parts of a name: of its 63 characters the backend's name gets those that
// "-v4-", the hash, "-" and six digits leave.
const (
	nameHashLength    = 10
	nameBackendLength = 63 - len("-v4-") - nameHashLength - len("-") - 6
)

// newName returns a name for a new slice of g, with the lowest free number. So a creation that is
// repeated because of a stale cache collides with the first one.
func (p *planner) newName(g *group) string {
	if g.namePrefix == "" {
		g.namePrefix = slicePrefix(p.template.Backend, g.family, g.key)
	}
	if p.names == nil {
		p.names = make(map[string]bool, len(p.existing)+len(p.template.Taken))
		maps.Copy(p.names, p.template.Taken)
		for _, s := range p.existing {
			p.names[s.Name] = true
		}
	}
	for {
		name := g.namePrefix + strconv.Itoa(g.nextNumber)
		g.nextNumber++
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
	h.Write([]byte(backend + "\x00" + key))
	hash := base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil))[:nameHashLength]
	return backend[:min(len(backend), nameBackendLength)] + "-" + familyMarks[family] + "-" +
		strings.ToLower(hash) + "-"
}
