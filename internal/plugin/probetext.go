package plugin

import (
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/view"
)

// probeReport is what `probe` prints of one ExternalBackend.
type probeReport struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Names     []nameResult  `json:"names,omitempty"`
	Probes    []probeResult `json:"probes,omitempty"`
	// Refused are the addresses that policy refuses. They are not probed.
	Refused []refusedProbe `json:"refused,omitempty"`
	// Unchecked is how many further endpoints were not probed. Notes say why.
	Unchecked int      `json:"unchecked,omitempty"`
	Notes     []string `json:"notes,omitempty"`
}

// nameResult is what a name resolves to from here.
type nameResult struct {
	Target    string   `json:"target"`
	Name      string   `json:"name"`
	Took      string   `json:"took,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
	Problem   string   `json:"problem,omitempty"`
	// Refused says why policy refuses the name. It is then not looked up.
	Refused string `json:"refused,omitempty"`
}

// refusedProbe is an address that policy refuses.
type refusedProbe struct {
	Name    string `json:"name,omitempty"`
	Address string `json:"address"`
	Why     string `json:"why"`
}

// probeResult is one probe from here, with the verdict of the manager.
type probeResult struct {
	Target  string `json:"target"`
	Address string `json:"address"`
	Host    string `json:"host,omitempty"`
	// Verdict is Healthy, Unhealthy or Unknown.
	Verdict      string              `json:"verdict"`
	Reason       string              `json:"reason,omitempty"`
	Message      string              `json:"message,omitempty"`
	Took         string              `json:"took"`
	Steps        []probeStep         `json:"steps"`
	ServerName   string              `json:"serverName,omitempty"`
	Certificates []probe.Certificate `json:"certificates,omitempty"`
	Answer       string              `json:"answer,omitempty"`
	Manager      managerVerdict      `json:"manager"`
}

// probeStep is one step of a probe.
type probeStep struct {
	Name  string `json:"name"`
	Took  string `json:"took"`
	Error string `json:"error,omitempty"`
}

// managerVerdict is what the manager says about an endpoint, from its own place.
type managerVerdict struct {
	// Verdict is "" if the manager does not publish the endpoint.
	Verdict string       `json:"verdict,omitempty"`
	Reason  string       `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
}

// tookText writes a duration in as few digits as people need.
func tookText(d time.Duration) string {
	unit := time.Microsecond
	for _, u := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
		if d >= 10*u {
			unit = u / 10
		}
	}
	return d.Round(unit).String()
}

// managerVerdicts are the verdicts of the manager by target and address.
type managerVerdicts map[[2]string]managerVerdict

func newManagerVerdicts(objects *view.Objects) managerVerdicts {
	out := managerVerdicts{}
	b := view.Build(objects)
	for i := range b.Targets {
		t := &b.Targets[i]
		for j := range t.Endpoints {
			e := &t.Endpoints[j]
			out[[2]string{t.Name, e.Address}] = managerVerdict{string(e.Verdict), e.Reason, e.Message, e.Since}
		}
	}
	return out
}

func newProbeResult(e *probe.Endpoint, t *probe.Trace, managers managerVerdicts) probeResult {
	state := plan.ProbeState{Reason: t.Reason, Detail: t.Detail}
	r := probeResult{
		Target: e.ID.Target, Address: e.Dial.String(), Host: e.Host, Verdict: t.Verdict.String(), Reason: t.Reason,
		Message: state.Cause(), Took: tookText(t.Took), ServerName: t.ServerName, Certificates: t.Certificates,
		Answer: t.Answer, Manager: managers[[2]string{e.ID.Target, e.ID.Addr.String()}],
	}
	for _, s := range t.Steps {
		r.Steps = append(r.Steps, probeStep{s.Name, tookText(s.Took), s.Err})
	}
	return r
}

// fails reports whether a check has failed.
func (r *probeReport) fails() bool {
	for i := range r.Names {
		if r.Names[i].Problem != "" {
			return true
		}
	}
	for i := range r.Probes {
		if r.Probes[i].Verdict == probe.Unhealthy.String() {
			return true
		}
	}
	return false
}

// unchecked returns how much could not be checked.
func (r *probeReport) unchecked() int {
	n := r.Unchecked + len(r.Refused)
	for i := range r.Names {
		if r.Names[i].Refused != "" {
			n++
		}
	}
	for i := range r.Probes {
		if r.Probes[i].Verdict == probe.Unknown.String() {
			n++
		}
	}
	return n
}

// write writes the report for people.
func (r *probeReport) write(out io.Writer) {
	linef := func(format string, args ...any) {
		fmt.Fprintln(out, printable(fmt.Sprintf(format, args...)))
	}
	linef("%s/%s, checked once from this machine. The manager checks from elsewhere, so its verdict may differ.",
		r.Namespace, r.Name)
	for i := range r.Names {
		r.Names[i].write(linef)
	}
	for i := range r.Refused {
		refused := &r.Refused[i]
		linef("  %s is not probed: policy refuses it: %s (--despite-policy probes it)", refused.Address, refused.Why)
	}
	for i := range r.Probes {
		r.Probes[i].write(linef)
	}
	if len(r.Probes)+len(r.Refused)+r.Unchecked == 0 {
		linef("  there is no endpoint to check")
	}
	for _, note := range r.Notes {
		linef("  Note: %s", note)
	}
}

func (r *nameResult) write(linef func(string, ...any)) {
	switch {
	case r.Refused != "":
		linef("  target %s: %s is not looked up: policy refuses it: %s", r.Target, r.Name, r.Refused)
	case r.Problem != "":
		linef("  target %s: %s does not resolve: %s", r.Target, r.Name, r.Problem)
	default:
		linef("  target %s: %s resolves in %s to %s", r.Target, r.Name, r.Took, plan.FirstFew(r.Addresses, 5))
	}
}

func (r *probeResult) write(linef func(string, ...any)) {
	host := ""
	if r.Host != "" {
		host = " (" + r.Host + ")"
	}
	linef("  target %s, %s%s", r.Target, r.Address, host)
	for _, s := range r.Steps {
		detail := s.Error
		switch {
		case s.Name == probe.StepTLS && s.Error == "":
			detail = "the certificate is for " + r.ServerName
		case s.Name == probe.StepAnswer && s.Error == "":
			detail = r.Answer
		}
		linef("%s", strings.TrimRight(fmt.Sprintf("    %-8s %8s  %s", s.Name, s.Took, detail), " "))
		if s.Name == probe.StepTLS {
			r.writeCertificates(linef)
		}
	}
	linef("    here:    %s", verdictText(r.Verdict+" in "+r.Took, r.Reason, r.Message))
	manager := "does not publish this endpoint, or you may not see it"
	if m := &r.Manager; m.Verdict != "" {
		manager = verdictText(m.Verdict, m.Reason, m.Message)
		if m.Since != nil {
			manager += ", since " + m.Since.UTC().Format(time.RFC3339)
		}
	}
	linef("    manager: %s", manager)
}

func (r *probeResult) writeCertificates(linef func(string, ...any)) {
	for i := range r.Certificates {
		c := &r.Certificates[i]
		names := ""
		if len(c.Names) > 0 {
			names = " for " + strings.Join(c.Names, ", ")
			if c.Omitted > 0 {
				names += fmt.Sprintf(" and %d more", c.Omitted)
			}
		}
		linef("      certificate %d: %s%s, by %s, from %s to %s", i+1, c.Subject, names, c.Issuer,
			c.NotBefore.UTC().Format(time.DateOnly), c.NotAfter.UTC().Format(time.DateOnly))
	}
}

// verdictText joins a verdict with its reason.
func verdictText(verdict, reason, message string) string {
	text := verdict
	if reason != "" {
		text += ", " + reason
	}
	if message != "" && message != reason {
		text += ": " + message
	}
	return text
}
