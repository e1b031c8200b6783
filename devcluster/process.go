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

// process is a child process with a log file.
type process struct {
	name    string
	logFile string
	cmd     *exec.Cmd
	exited  chan struct{}
	killed  atomic.Bool
}

// startProcess starts cmd and appends its output to the log. The process gets its own process
// group, so that a Ctrl-C reaches only the program.
func startProcess(name, logFile string, cmd *exec.Cmd) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has a copy
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, logFile: logFile, cmd: cmd, exited: make(chan struct{})}
	go func() { // ends with the process
		_ = cmd.Wait() // ProcessState has the result
		if !p.killed.Load() {
			fmt.Fprintf(os.Stderr, "devcluster: %s exited by itself: %v; its log is %s\n", name, cmd.ProcessState, logFile)
		}
		close(p.exited)
	}()
	return p, nil
}

// kill kills the process group. Nothing is lost, because the data is in etcd's memory-backed files.
func (p *process) kill() {
	p.killed.Store(true)
	_ = p.signal(syscall.SIGKILL) // it may have exited already
	<-p.exited
}

func (p *process) signal(sig syscall.Signal) error { return syscall.Kill(-p.cmd.Process.Pid, sig) }

// await calls check until it returns nil. If ctx or the process ends before, the error has the end
// of the log.
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

// logTail returns the end of the log.
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
