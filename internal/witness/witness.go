// Package witness lets replicas ask each other whether they reach an endpoint. The Panel asks,
// for the prober of its replica, and the Server answers. It makes the same check, with
// credentials and policy of its own. Both show a self-signed certificate, and know the other one
// by the SHA-256 that stands in its Lease. The rules are in docs/design/witnesses.md.
package witness

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
)

const (
	// path is where a replica answers.
	path = "/opinions"
	// version is that of the messages. A replica refuses those of another version.
	version = 1
	// maxQuestions bounds the questions of one request, and maxBody its size in bytes.
	maxQuestions = 1000
	maxBody      = 1 << 20
	// requestTimeout bounds one request with its answer.
	requestTimeout = time.Second
	// requestPeriod is the time between two requests to one peer, at least. What is to be asked
	// gathers meanwhile.
	requestPeriod = 20 * time.Millisecond
	// maxHold is for how long a request waits for an opinion at most. It is well within
	// requestTimeout.
	maxHold = 100 * time.Millisecond
)

// Peer is another replica, as its Lease describes it.
type Peer struct {
	Name    string // of its Lease
	Address netip.AddrPort
	// Fingerprint is the SHA-256 of its certificate, in hexadecimal digits.
	Fingerprint string
	// Distance is 0 for the one that has the least in common with this replica. It is asked
	// first.
	Distance int
}

// NewCertificate returns a certificate for this process, and its fingerprint.
func NewCertificate() (tls.Certificate, string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, fingerprintOf(der), nil
}

func fingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

var errStranger = errors.New("no Lease of a live replica names this certificate")

// tlsConfig lets in, or dials, only a replica whose fingerprint is known.
func tlsConfig(own tls.Certificate, known func(fingerprint string) bool) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{own},
		ClientAuth:   tls.RequireAnyClientCert,
		// The certificates have no authority and no name. VerifyConnection compares their
		// SHA-256.
		InsecureSkipVerify:     true, //nolint:gosec // see above
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !known(fingerprintOf(s.PeerCertificates[0].Raw)) {
				return errStranger
			}
			return nil
		},
	}
}

// question is about one endpoint of an ExternalBackend.
type question struct {
	Namespace  string         `json:"namespace"`
	Name       string         `json:"name"`
	Generation int64          `json:"generation"`
	Target     string         `json:"target"`
	Address    netip.AddrPort `json:"address"` // the published address, and the first target port
	// Begin asks for a new opinion. What was known before counts no more.
	Begin bool `json:"begin,omitempty"`
}

func newQuestion(q probe.Question, generation int64) question {
	return question{
		Namespace: q.Owner.Namespace, Name: q.Owner.Name, Generation: generation,
		Begin: q.First, Target: q.ID.Target, Address: netip.AddrPortFrom(q.ID.Addr, q.ID.Port),
	}
}

func (q *question) subject() subject {
	return subject{
		owner: types.NamespacedName{Namespace: q.Namespace, Name: q.Name},
		id:    probe.ID{Target: q.Target, Addr: q.Address.Addr(), Port: q.Address.Port()},
	}
}

// subject names an endpoint of an ExternalBackend.
type subject struct {
	owner types.NamespacedName
	id    probe.ID
}

// request is what a replica asks.
type request struct {
	Version   int        `json:"version"`
	Questions []question `json:"questions"`
	// SilentMilliseconds is for how long the endpoints have been silent, at most.
	SilentMilliseconds int64 `json:"silentMilliseconds"`
	// Hold asks to wait a moment for opinions that are not there yet.
	Hold bool `json:"hold"`
}

// response has the opinions, parallel to the questions.
type response struct {
	Opinions []opinion `json:"opinions"`
}

// opinion is what a replica says about an endpoint.
type opinion string

const (
	pending   opinion = "Pending" // it is being probed
	healthy   opinion = "Healthy"
	unhealthy opinion = "Unhealthy"
	refused   opinion = "Refused" // it is not probed
)

// readRequest reads a request, and returns an error that says what is wrong with it.
func readRequest(body io.Reader) (*request, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxBody {
		return nil, fmt.Errorf("more than %d bytes", maxBody)
	}
	var r request
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return nil, err
	}
	switch {
	case r.Version != version:
		return nil, fmt.Errorf("version %d: only version %d is known", r.Version, version)
	case len(r.Questions) > maxQuestions:
		return nil, fmt.Errorf("%d questions: at most %d", len(r.Questions), maxQuestions)
	case r.SilentMilliseconds < 0:
		return nil, errors.New("silentMilliseconds is negative")
	}
	return &r, nil
}

// readResponse reads the answer to n questions.
func readResponse(body io.Reader, n int) ([]opinion, error) {
	var r response
	if err := json.NewDecoder(io.LimitReader(body, maxBody)).Decode(&r); err != nil {
		return nil, err
	}
	if len(r.Opinions) != n {
		return nil, fmt.Errorf("%d opinions for %d questions", len(r.Opinions), n)
	}
	return r.Opinions, nil
}
