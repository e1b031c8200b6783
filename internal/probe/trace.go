package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strconv"
	"time"
)

// The steps of a probe, in their order.
const (
	StepConnect = "connect"
	StepTLS     = "TLS"
	StepRequest = "request"
	StepAnswer  = "answer"
)

const (
	// maxShownCertificates and maxShownNames bound what a Trace shows of a peer's certificates.
	maxShownCertificates = 8
	maxShownNames        = 10
	// maxShownAnswer is how many bytes of an answer a Trace shows.
	maxShownAnswer = 80
)

// Trace is one probe, step by step, for people.
type Trace struct {
	Verdict Verdict // of this one probe, without thresholds; Unknown if it could not be run
	Reason  string  // of an Unhealthy verdict, one of the Reason constants
	Detail  string  // as in State
	Steps   []Step
	Took    time.Duration

	// ServerName is the name that the peer's certificate must be for; "" without TLS.
	ServerName string
	// Certificates are the peer's, its own first.
	Certificates []Certificate
	// Answer is the beginning of the first line of the answer, as a quoted string; "" if it is not
	// text.
	Answer string
}

// Step is one step of a probe.
type Step struct {
	Name string
	Took time.Duration
	Err  string // for people; "" if the step succeeded
}

// Certificate is what a Trace shows of a certificate.
type Certificate struct {
	Subject, Issuer     string
	Names               []string // DNS names and IP addresses, the first few
	Omitted             int      // how many further names there are
	NotBefore, NotAfter time.Time
}

// Run runs one probe of e and traces it. It asks and judges as an Engine does, over a new
// connection, but it neither asks Permit nor counts thresholds. It blocks for no longer than the
// check's timeout.
func Run(ctx context.Context, c *Check, e Endpoint) Trace {
	limited, cancel := context.WithTimeout(ctx, c.rules().timeout)
	defer cancel()
	t := Trace{}
	started := time.Now()
	o := converse(limited, newHandler(c), e, &t)
	t.Took = time.Since(started)
	if o.result == unknown && limited.Err() != nil && ctx.Err() == nil {
		o = failed(ReasonTimeout)
	}
	switch o.result {
	case success:
		t.Verdict = Healthy
	case failure:
		t.Verdict = Unhealthy
	}
	t.Reason, t.Detail = o.reason, o.detail
	return t
}

// begin begins a step. The result ends it.
func (t *Trace) begin(name string) (done func(error)) {
	if t == nil {
		return func(error) {}
	}
	started := time.Now()
	return func(err error) {
		s := Step{Name: name, Took: time.Since(started)}
		if err != nil {
			s.Err = err.Error()
		}
		t.Steps = append(t.Steps, s)
	}
}

// secured notes the certificates of a session, and the name that they must be for.
func (t *Trace) secured(s *session, e Endpoint, err error) {
	if t == nil {
		return
	}
	t.ServerName = s.handler.serverName(e)
	chain := s.ConnectionState().PeerCertificates
	if refused, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		chain = refused.UnverifiedCertificates
	}
	for _, c := range chain[:min(len(chain), maxShownCertificates)] {
		t.Certificates = append(t.Certificates, certificateOf(c))
	}
}

func certificateOf(c *x509.Certificate) Certificate {
	names := c.DNSNames
	for _, ip := range c.IPAddresses {
		names = append(slices.Clip(names), ip.String())
	}
	shown := min(len(names), maxShownNames)
	return Certificate{
		Subject: c.Subject.String(), Issuer: c.Issuer.String(), Names: names[:shown], Omitted: len(names) - shown,
		NotBefore: c.NotBefore, NotAfter: c.NotAfter,
	}
}

// answered notes the beginning of the first line of an answer.
func (t *Trace) answered(in []byte) {
	if t == nil || t.Answer != "" {
		return
	}
	line, _, _ := bytes.Cut(in, []byte("\n"))
	line = bytes.TrimRight(line[:min(len(line), maxShownAnswer)], "\r")
	for _, c := range line {
		if c != '\t' && (c < ' ' || c > '~') {
			return
		}
	}
	t.Answer = strconv.Quote(string(line))
}
