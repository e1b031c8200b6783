package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/external-backend/operator/devcluster"
)

// Send sends one request over a new connection, and returns the name of the machine that answers.
type Send func(ctx context.Context) (string, error)

// Sender returns a Send from a namespace to addr, a host and port, in the protocol of a [Server] on
// that network. The cluster's DNS resolves the host.
func Sender(from *devcluster.Namespace, network, addr string) Send {
	switch network {
	case "http":
		client := &http.Client{Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
		return func(ctx context.Context) (string, error) { return get(ctx, client, "http://"+addr+"/") }
	case "tcp":
		return func(ctx context.Context) (string, error) {
			return exchange(ctx, from, network, addr,
				func(conn net.Conn) (string, error) { return bufio.NewReader(conn).ReadString('\n') })
		}
	default:
		return func(ctx context.Context) (string, error) {
			return exchange(ctx, from, network, addr, func(conn net.Conn) (string, error) {
				packet := make([]byte, 256)
				n, err := conn.Read(packet)
				return string(packet[:n]), err
			})
		}
	}
}

// exchange writes one line to a new connection, and returns the answer that read gets from it.
func exchange(
	ctx context.Context, from *devcluster.Namespace, network, addr string, read func(net.Conn) (string, error),
) (string, error) {
	conn, err := from.Dial(ctx, network, addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprintln(conn, "who is there"); err != nil {
		return "", err
	}
	answer, err := read(conn)
	return strings.TrimSpace(answer), err
}

// get returns the body of an answer with status 200. Any other status is an error.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return string(body), err
}

// Tally counts the outcomes of requests.
type Tally struct {
	Sent, Failed int
	Answers      map[string]int // by machine
	Failures     []Failure      // the first few
	LastFailure  time.Time      // when the last failed request was sent; zero: none failed
}

// Failure describes a request without an answer.
type Failure struct {
	At  time.Time // when the request was sent
	Err error
}

const (
	maxFailures = 20
	maxInFlight = 64
)

func (t *Tally) add(at time.Time, answer string, err error) {
	t.Sent++
	if err == nil {
		t.Answers[answer]++
		return
	}
	t.Failed++
	if at.After(t.LastFailure) {
		t.LastFailure = at
	}
	if len(t.Failures) < maxFailures {
		t.Failures = append(t.Failures, Failure{at, err})
	}
}

// Load sends requests at a steady rate, also while earlier ones are not answered.
type Load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	tally Tally
}

// StartLoad sends a request per interval until ctx ends or Stop is called. timeout bounds each
// request. While 64 requests are in flight, no further one is sent.
func StartLoad(ctx context.Context, interval, timeout time.Duration, send Send) *Load {
	sending, cancel := context.WithCancel(ctx)
	l := &Load{cancel: cancel, tally: Tally{Answers: map[string]int{}}}
	slots := make(chan struct{}, maxInFlight)
	l.done.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-sending.Done():
				return
			case <-ticker.C:
			}
			select {
			case slots <- struct{}{}:
			default:
				continue
			}
			l.done.Go(func() {
				// Stop lets the requests in flight end.
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				at := time.Now()
				answer, err := send(ctx)
				<-slots
				l.mu.Lock()
				defer l.mu.Unlock()
				l.tally.add(at, answer, err)
			})
		}
	})
	return l
}

// Tally returns the outcomes of the requests so far.
func (l *Load) Tally() Tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tally
	t.Answers = maps.Clone(t.Answers)
	t.Failures = slices.Clone(t.Failures)
	return t
}

// Stop sends no more requests, waits for those in flight, and returns the outcomes of all.
func (l *Load) Stop() Tally {
	l.cancel()
	l.done.Wait()
	return l.Tally()
}
