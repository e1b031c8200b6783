package importer

import (
	"regexp"
	"slices"
	"strings"

	"github.com/external-backend/operator/api/v1alpha1"
)

const (
	maxSeconds, maxThreshold     = 3600, 100
	maxPath, maxHeaders          = 1024, 32
	maxHeaderName, maxHeaderText = 256, 4096
)

var (
	pathPattern = regexp.MustCompile(`^/[^\x00-\x20\x7F]*$`)
	headerName  = regexp.MustCompile("^[-!#$%&'*+.^_\x60|~0-9A-Za-z]+$")
	headerValue = regexp.MustCompile(`^[^\x00-\x08\x0A-\x1F\x7F]*$`)
	hostAndPort = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[1-9][0-9]{0,4})?$`)
)

// seconds returns a time of a check; 0 is absent.
func (d *draft) seconds(field string, n int32) int32 { return d.number(field, n, maxSeconds) }

// threshold returns a threshold of a check; 0 is absent.
func (d *draft) threshold(field string, n int32) int32 { return d.number(field, n, maxThreshold) }

func (d *draft) number(field string, n, most int32) int32 {
	if n < 0 || n > most {
		d.refuse(field, "%d must be 1 to %d", n, most)
		return 0
	}
	return n
}

// path returns the path of a check; "" is absent.
func (d *draft) path(field, path string) string {
	if path == "" || path == "/" {
		return ""
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if len(path) > maxPath || !pathPattern.MatchString(path) {
		d.refuse(field, "%q must be a path without spaces of at most %d characters", clip(path), maxPath)
		return ""
	}
	return path
}

// addHeader adds a header to the request of a check.
func (d *draft) addHeader(field string, get *v1alpha1.HTTPGet, h v1alpha1.HTTPHeader) {
	isHost := func(other v1alpha1.HTTPHeader) bool { return strings.EqualFold(other.Name, "host") }
	switch {
	case len(get.HTTPHeaders) == maxHeaders:
		d.refuse(field, "a check has at most %d headers", maxHeaders)
	case len(h.Name) > maxHeaderName || !headerName.MatchString(h.Name):
		d.refuse(field+".name", "%q must be the name of a header", clip(h.Name))
	case len(h.Value) > maxHeaderText || !headerValue.MatchString(h.Value):
		d.refuse(field+".value", "it must have no control characters, and at most %d characters", maxHeaderText)
	case isHost(h) && slices.ContainsFunc(get.HTTPHeaders, isHost):
		d.refuse(field, "a request has one Host header")
	case isHost(h) && !hostAndPort.MatchString(h.Value):
		d.refuse(field+".value", "%q must be a host name or an address", clip(h.Value))
	default:
		get.HTTPHeaders = append(get.HTTPHeaders, h)
	}
}
