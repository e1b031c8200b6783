package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A program has three stages, each in its own process:
//
//	outer   the process that the user started: waits, forwards signals, exits like the program inside
//	init    PID 1 of the namespaces: mounts private file systems, starts the program, reaps orphans;
//	        when it dies, all processes in the namespaces die
//	inside  the program itself
//
// A pipe from outer to init carries the forwarded signals, one byte each. When it is closed, outer
// has ended.
const (
	stageEnv   = "DEVCLUSTER_STAGE"
	nsenterEnv = "DEVCLUSTER_NSENTER"
	filesEnv   = "DEVCLUSTER_FILES" // how many files are handed to the program
	// File descriptors of init. The program has no lifeline, so its files begin one earlier.
	lifelineFD  = 3
	initFilesFD = 4
	filesFD     = 3
)

// inside reports whether this process runs in the namespaces. nsenter is then the command line that
// enters them, and files are those that were handed to Enter.
var (
	inside  bool
	nsenter string
	files   []*os.File
)

// init runs before any main or TestMain. In the stage init, nothing else of the program runs.
func init() {
	stage := os.Getenv(stageEnv)
	nsenter = os.Getenv(nsenterEnv)
	count, _ := strconv.Atoi(os.Getenv(filesEnv)) // 0 if it is not set
	// Child processes are not a stage of this program. A child that calls Enter gets new namespaces.
	os.Unsetenv(stageEnv)
	os.Unsetenv(nsenterEnv)
	os.Unsetenv(filesEnv)
	switch stage {
	case "init", "init of user":
		files = handedFiles(initFilesFD, count)
		code, err := runInit(stage == "init of user")
		if err != nil {
			fmt.Fprintln(os.Stderr, "devcluster:", err)
		}
		os.Exit(code)
	case "inside":
		inside, files = true, handedFiles(filesFD, count)
	}
}

// handedFiles returns files that the process has inherited. Its children do not inherit them.
func handedFiles(first, count int) []*os.File {
	var out []*os.File
	for fd := first; fd < first+count; fd++ {
		syscall.CloseOnExec(fd)
		out = append(out, os.NewFile(uintptr(fd), fmt.Sprintf("handed file %d", fd-first)))
	}
	return out
}

// Main does all that a TestMain has to do: it builds missing binaries for the given Kubernetes
// versions (none: the selected one), enters the namespaces and runs the tests. Flags, exit status,
// timeouts, profiles and coverage work as usual.
func Main(m interface{ Run() int }, versions ...string) {
	if !inside {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		err := Ensure(ctx, os.Stderr, versions...)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	Enter()
	os.Exit(m.Run())
}

// Enter returns only in a process with its own network, mount and PID namespaces. In any other
// process, it starts the program again inside such namespaces with the same arguments, waits for
// it, and exits with its status (128 + n for a signal n). If that fails, it prints an error and
// exits with 1. Call it at the beginning of main. It hands files over from outside, such as a
// listening socket, which stays in the network where it was opened.
func Enter(handOver ...*os.File) {
	if inside {
		return
	}
	code, err := runOuter(handOver)
	if err != nil {
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		code = 1
	}
	os.Exit(code)
}

// Nsenter returns the beginning of a command line that enters the program's namespaces from
// outside. It is empty in a process that is not inside.
func Nsenter() string { return nsenter }

// Files returns the files that were handed to Enter outside. It is empty in a process that is not
// inside.
func Files() []*os.File {
	if !inside {
		return nil
	}
	return files
}

// runDir returns the directory on which the tmpfs is mounted in the namespaces. Outside it is
// empty.
func runDir() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "run"), nil
}

func runOuter(handOver []*os.File) (code int, err error) {
	if missing := Missing(); len(missing) > 0 {
		return 0, fmt.Errorf("missing Debian packages, install them with: apt-get install %s", strings.Join(missing, " "))
	}
	dir, err := runDir()
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return 0, err
	}
	lifeline, forward, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	cmd, err := startInit(lifeline, handOver, os.Geteuid() != 0)
	if errors.Is(err, syscall.EPERM) && os.Geteuid() == 0 { // root in a container without the capabilities
		cmd, err = startInit(lifeline, handOver, true)
	}
	if err != nil {
		return 0, fmt.Errorf("enter new namespaces (as root, or where users may create user namespaces): %w", err)
	}
	lifeline.Close()
	go forwardSignals(signals, forward) // until the process ends
	err = cmd.Wait()
	if cmd.ProcessState == nil {
		return 0, err
	}
	return exitCode(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
}

func startInit(lifeline *os.File, handOver []*os.File, newUser bool) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	stage := "init"
	if newUser {
		stage = "init of user"
	}
	cmd.Env = append(os.Environ(), stageEnv+"="+stage, "PATH="+os.Getenv("PATH")+systemPath,
		filesEnv+"="+strconv.Itoa(len(handOver)))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = append([]*os.File{lifeline}, handOver...) // from lifelineFD on
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if newUser {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	err := cmd.Start()
	return cmd, err
}

// forwardSignals forwards signals, except a Ctrl-C, which the terminal sends to the program inside,
// too.
func forwardSignals(signals <-chan os.Signal, forward *os.File) {
	for sig := range signals {
		if sig == syscall.SIGINT && InForeground() {
			continue
		}
		if _, err := forward.Write([]byte{byte(sig.(syscall.Signal))}); err != nil {
			return // init has ended, and Wait is about to return
		}
	}
}

// InForeground reports whether the terminal sends a Ctrl-C to this process and its children, so
// that forwarding it would deliver it twice.
func InForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// runInit is the stage init, PID 1. It returns the program's exit status.
func runInit(newUser bool) (int, error) {
	lifeline := os.NewFile(lifelineFD, "lifeline")
	syscall.CloseOnExec(lifelineFD)
	// Only the program acts on signals of the terminal. Children inherit ignored signals, but not
	// caught ones, so they are caught here.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	self, err := os.Readlink("/proc/self") // /proc is still that of outside
	if err != nil {
		return 1, err
	}
	if err := isolate(); err != nil {
		return 1, err
	}
	follow := "nsenter --target " + self + " --mount --net --pid"
	if newUser {
		follow += " --user --preserve-credentials"
	}
	program, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), stageEnv+"=inside", nsenterEnv+"="+follow, filesEnv+"="+strconv.Itoa(len(files))),
		Files: append([]*os.File{os.Stdin, os.Stdout, os.Stderr}, files...), // from filesFD on
	})
	if err != nil {
		return 1, fmt.Errorf("start the program inside: %w", err)
	}
	go func() {
		sig := make([]byte, 1)
		for {
			if _, err := lifeline.Read(sig); err != nil {
				os.Exit(exitCode(syscall.WaitStatus(syscall.SIGKILL)))
			}
			_ = syscall.Kill(program.Pid, syscall.Signal(sig[0])) // an error means that it is about to be reaped below
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && err != syscall.EINTR {
			return 1, fmt.Errorf("wait: %w", err)
		}
		if pid == program.Pid {
			return exitCode(status), nil
		}
	}
}

// isolate separates the namespaces from outside: mounts are private, and /proc has only our
// processes.
func isolate() error {
	dir, err := runDir()
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc (a container may forbid it): %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return runTool("", "ip", "link", "set", "lo", "up")
}

// exitCode returns the exit code by the shell's convention.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// runTool runs a system tool. The error contains its output.
func runTool(stdin, name string, args ...string) error {
	path, err := lookTool(name)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
