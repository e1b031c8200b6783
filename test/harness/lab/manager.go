package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	readyTimeout = 30 * time.Second
	stopTimeout  = 35 * time.Second // the manager's own grace is 30 s
	maxTail      = 64 << 10
)

// Manager is a process of the real manager. It has exactly the rights of the ServiceAccount that
// the manifests install.
type Manager struct {
	Log string // path of its log

	cmd           *exec.Cmd
	probes, stats string // base URLs
	exited        chan struct{}
	err           error // of its end; read it only after exited is closed
}

// StartManager starts a manager with further flags, and returns once /readyz answers 200. Several
// managers can run at a time, since each has addresses of its own, unless flags say otherwise.
func (l *Lab) StartManager(ctx context.Context, flags ...string) (*Manager, error) {
	number := int(l.managers.Add(1))
	return l.startManager(ctx, number, exec.Command, "127.0.0.1", flags)
}

// StartManagerOn is StartManager on a machine, which has a network of its own.
func (l *Lab) StartManagerOn(ctx context.Context, m *Machine, flags ...string) (*Manager, error) {
	command := func(name string, args ...string) *exec.Cmd { return m.Command(context.Background(), name, args...) }
	return l.startManager(ctx, int(l.managers.Add(1)), command, m.V4.String(), flags)
}

func (l *Lab) startManager(
	ctx context.Context, number int, command func(name string, args ...string) *exec.Cmd, host string, flags []string,
) (*Manager, error) {
	at := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port+3*number)) }
	health, stats, witness := at(20000), at(20001), at(20002)
	for _, flag := range flags {
		if port, ok := strings.CutPrefix(flag, "--health-probe-bind-address=:"); ok {
			health = net.JoinHostPort("127.0.0.1", port)
		}
	}
	m := &Manager{
		Log:    filepath.Join(l.Logs, fmt.Sprintf("manager-%d.log", number)),
		probes: "http://" + health, stats: "http://" + stats,
		exited: make(chan struct{}),
	}
	m.cmd = command(l.manager, append([]string{"--kubeconfig=" + l.kubeconfig, "--witness-bind-address=" + witness,
		"--health-probe-bind-address=" + health, "--metrics-bind-address=" + stats, "--metrics-secure=false"},
		flags...)...)
	log, err := os.Create(m.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has a copy
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.Env = append(os.Environ(), "POD_NAMESPACE="+SystemNamespace, fmt.Sprint("POD_NAME=manager-", number))
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C must reach our program only
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("lab: start the manager: %w", err)
	}
	go func() { // ends with the process
		m.err = m.cmd.Wait()
		close(m.exited)
	}()
	if _, err := m.await(ctx, m.probes+"/readyz"); err != nil {
		m.Kill()
		return nil, fmt.Errorf("lab: %w; the manager said:\n%s", err, m.Tail())
	}
	return m, nil
}

// await sends requests until the manager's server at the URL answers without an error.
func (m *Manager) await(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		text, err := fetch(ctx, url)
		if err == nil {
			return text, nil
		}
		select {
		case <-m.exited:
			return "", fmt.Errorf("the manager ended: %w", errors.Join(m.err, err))
		case <-ctx.Done():
			return "", fmt.Errorf("the manager is not ready: %w", err)
		case <-ticker.C:
		}
	}
}

// Stop ends the manager by SIGTERM. An exit status other than 0 is an error; the race detector
// causes one when it has seen a data race.
func (m *Manager) Stop() error {
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-m.exited:
	case <-time.After(stopTimeout):
		m.Kill()
		return fmt.Errorf("lab: the manager did not end within %v of SIGTERM", stopTimeout)
	}
	if m.err != nil {
		return fmt.Errorf("lab: the manager ended with %w", m.err)
	}
	return nil
}

// Kill ends the manager by SIGKILL, like a crash.
func (m *Manager) Kill() {
	_ = m.cmd.Process.Kill() // the manager may have ended already
	<-m.exited
}

// Signal sends the manager a signal, such as SIGSTOP.
func (m *Manager) Signal(signal syscall.Signal) error { return m.cmd.Process.Signal(signal) }

// Exited is closed once the process has ended.
func (m *Manager) Exited() <-chan struct{} { return m.exited }

// Tail returns the end of the manager's log, at most 64 KiB.
func (m *Manager) Tail() string {
	file, err := os.Open(m.Log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil {
		_, _ = file.Seek(max(0, info.Size()-maxTail), io.SeekStart)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTail))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Scrape returns what the manager exposes, in Prometheus' text format.
func (m *Manager) Scrape(ctx context.Context) (string, error) {
	text, err := m.await(ctx, m.stats+"/metrics")
	if err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	return text, nil
}

// Metrics returns the value of each series, by the text of the series, such as
// `externalbackend_endpoints{name="db",namespace="shop",state="Healthy"}`.
func (m *Manager) Metrics(ctx context.Context) (map[string]float64, error) {
	text, err := m.Scrape(ctx)
	if err != nil {
		return nil, err
	}
	series := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("lab: metric %q: %w", line, err)
		}
		series[line[:at]] = value
	}
	return series, nil
}

func fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return get(ctx, http.DefaultClient, url)
}
