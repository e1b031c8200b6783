package main

import (
	"context"
	"fmt"
	"time"

	"github.com/external-backend/operator/test/harness/lab"
)

// backend is a machine outside of the cluster with an HTTP server on it.
type backend struct {
	*lab.Machine
	server *lab.Server
}

func startBackends(l *lab.Lab) ([]*backend, error) {
	var backends []*backend
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		machine, err := l.AddMachine(name)
		if err != nil {
			return nil, err
		}
		server, err := machine.Serve("http", port)
		if err != nil {
			return nil, err
		}
		backends = append(backends, &backend{machine, server})
	}
	return backends, nil
}

// fault is a way to break a backend.
type fault struct {
	done, story string // "killed", and an explanation
	cause, end  func(*backend) error
	ended       string // "started again"
}

var (
	kill = fault{
		done: "killed", story: "connections are refused, so its checks fail at once",
		cause: func(b *backend) error { b.server.Stop(); return nil },
		end:   func(b *backend) error { return b.server.Start() }, ended: "started again",
	}
	blackHole = fault{
		done: "black-holed", story: "every packet to it vanishes, so its checks time out",
		cause: func(b *backend) error { return b.BlackHole() },
		end:   func(b *backend) error { return b.Undrop() }, ended: "connected again",
	}
)

// maxOutages bounds the outages that the summary has.
const maxOutages = 20

// patience is how long a backend may take to leave or to come back. It should take a second or two.
const patience = 20 * time.Second

// play breaks and mends one backend after the other until ctx ends. It measures how long they take
// to leave rotation and to come back. If they do not, it returns an error.
func play(ctx context.Context, v *view) error {
	phase := min(max(v.length/5, 4*time.Second), 10*time.Second)
	v.tell("all three backends serve")
	next, end := time.Now().Add(phase), v.begin.Add(v.length)
	for round := 1; ; round++ {
		for i, f := range []fault{kill, blackHole} {
			b := v.backends[(round+i)%len(v.backends)]
			if end.Sub(next) < phase { // too late for another fault
				next = end.Add(phase)
			}
			if !sleepUntil(ctx, next) {
				return nil
			}
			if err := v.breakBackend(ctx, b, f); err != nil || ctx.Err() != nil {
				return err
			}
			if !sleepUntil(ctx, next.Add(phase)) {
				return nil
			}
			if err := v.mendBackend(ctx, b, f); err != nil || ctx.Err() != nil {
				return err
			}
			next = next.Add(2 * phase)
		}
	}
}

// sleepUntil waits, and returns false if ctx ends before.
func sleepUntil(ctx context.Context, at time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(at)):
		return true
	}
}

// breakBackend breaks a backend and waits until it is out of rotation.
func (v *view) breakBackend(ctx context.Context, b *backend, f fault) error {
	outage := outage{backend: b.Name(), fault: f.done, at: time.Now(), before: v.load.Tally()}
	if err := f.cause(b); err != nil {
		return err
	}
	v.setMachine(b, f.done)
	v.tell("%s is %s: %s", b.Name(), f.done, f.story)
	left, err := v.awaitReady(ctx, b, false)
	if err != nil {
		return err
	}
	if !left.IsZero() {
		outage.out = left.Sub(outage.at)
		v.tell("%s is out of rotation, %.1f s after it was %s", b.Name(), outage.out.Seconds(), f.done)
	}
	v.outages = append(last(v.outages, maxOutages-1), outage)
	return nil
}

// mendBackend mends the backend that was broken last, and waits until it is back.
func (v *view) mendBackend(ctx context.Context, b *backend, f fault) error {
	outage := &v.outages[len(v.outages)-1]
	outage.after = v.load.Tally()
	at := time.Now()
	if err := f.end(b); err != nil {
		return err
	}
	v.setMachine(b, "serves")
	v.tell("%s is %s", b.Name(), f.ended)
	back, err := v.awaitReady(ctx, b, true)
	if err != nil {
		return err
	}
	if !back.IsZero() {
		outage.back = back.Sub(at)
		v.tell("%s is back in rotation, %.1f s after it was %s", b.Name(), outage.back.Seconds(), f.ended)
	}
	return nil
}

// outage describes the effect of a fault on the requests.
type outage struct {
	backend, fault string
	at             time.Time
	out, back      time.Duration // time until it left rotation, and until it was back; 0: the demo ended before
	before, after  lab.Tally
}

func (o *outage) String() string {
	text := fmt.Sprintf("%s %s: ", o.backend, o.fault)
	if o.out == 0 {
		return text + "the demo ended before it was out of rotation"
	}
	text += fmt.Sprintf("out of rotation after %.1f s", o.out.Seconds())
	if o.back > 0 {
		text += fmt.Sprintf(", back %.1f s after its return", o.back.Seconds())
	}
	if o.after.Answers == nil {
		return text
	}
	failed := o.after.Failed - o.before.Failed
	text += fmt.Sprintf("; %d of %d requests failed", failed, o.after.Sent-o.before.Sent)
	if failed > 0 {
		text += fmt.Sprintf(", the last one sent after %.1f s", o.after.LastFailure.Sub(o.at).Seconds())
	}
	return text
}
