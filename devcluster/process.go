package devcluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a child that writes to a log file.
type process struct {
	name    string
	logFile string
	cmd     *exec.Cmd
	exited  chan struct{}
	killed  atomic.Bool
}

// startProcess starts cmd, whose output is appended to the log. It gets a process group of its own:
// a Ctrl-C is the program's to act on.
func startProcess(name, logFile string, cmd *exec.Cmd) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, logFile: logFile, cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the process
		_ = cmd.Wait() // its state tells
		if !p.killed.Load() {
			fmt.Fprintf(os.Stderr, "devcluster: %s exited by itself: %v; its log is %s\n", name, cmd.ProcessState, logFile)
		}
		close(p.exited)
	}()
	return p, nil
}

// kill ends the process group at once. Nothing in there has anything to lose: what counts is in
// etcd's memory-backed files.
func (p *process) kill() {
	p.killed.Store(true)
	_ = p.signal(syscall.SIGKILL) // it may have exited by itself
	<-p.exited
}

func (p *process) signal(sig syscall.Signal) error { return syscall.Kill(-p.cmd.Process.Pid, sig) }

// await polls until check is content. It fails, with the end of the log, when ctx ends or the
// process does.
func (p *process) await(ctx context.Context, check func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := check(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s exited: %v\n%s", p.name, p.cmd.ProcessState, p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w\n%s", p.name, ctx.Err(), err, p.logTail())
		case <-ticker.C:
		}
	}
}

// logTail is the last few lines of the log.
func (p *process) logTail() string {
	const limit = 4 << 10
	file, err := os.Open(p.logFile)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-limit), limit))
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("--- end of %s ---\n%s", p.logFile, bytes.TrimSpace(text))
}
