package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a child whose lines are read as they come. It lives until stop, or until its context
// ends.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	read   chan struct{} // closed once its output has ended
	stderr strings.Builder
	stop   context.CancelFunc
}

// start starts a child. heard gets each line that the child prints, and the time.
func start(cmd *exec.Cmd, stop context.CancelFunc, heard func(line string, at time.Time)) (*process, error) {
	p := &process{cmd: cmd, read: make(chan struct{}), stop: stop}
	cmd.Stderr = &p.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process
		defer close(p.read)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			heard(lines.Text(), time.Now())
		}
	}()
	return p, nil
}

// startRole starts this program in a role, with a job as its second argument.
func startRole(ctx context.Context, role string, job any, heard func(string, time.Time)) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return start(exec.CommandContext(ctx, self, role, string(text)), cancel, heard)
}

// startHAProxy starts HAProxy with one thread and these backends. Its configuration file is in dir.
// HAProxy reports the changes of its servers.
func startHAProxy(ctx context.Context, dir, backends string, heard func(string, time.Time)) (*process, error) {
	path, err := haproxyPath()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "haproxy.cfg")
	text := "global\n  nbthread 1\n  log stdout format raw local0\n" +
		"defaults\n  mode tcp\n  log global\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\n" +
		"frontend none\n  bind 127.0.0.1:9000\n" + backends // it insists on one
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return start(exec.CommandContext(ctx, path, "-db", "-f", config), cancel, heard)
}

// say writes a line to the child.
func (p *process) say(line string) error {
	_, err := fmt.Fprintln(p.stdin, line)
	return err
}

// kill ends the child at once.
func (p *process) kill() {
	p.stop()
	<-p.read
	_ = p.cmd.Wait() // killed
}

// alive returns an error where the child has ended by itself. The error has its error output.
func (p *process) alive() error {
	select {
	case <-p.read:
		return errors.New("a process has ended by itself: " + p.cmd.String() + ": " + p.stderr.String())
	default:
		return nil
	}
}

// cpuTime returns how long all threads of the child have run so far, in user and kernel mode.
func (p *process) cpuTime() (time.Duration, error) {
	const ofProcess = 2 // clock_getcpuclockid(3), in the kernel's encoding: the whole process, by the scheduler's account
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|ofProcess), &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of %s: %w", p.cmd, err)
	}
	return time.Duration(ts.Nano()), nil
}
