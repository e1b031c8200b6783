package devcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// leaveBehind is the program that TestNothingIsLeftBehind kills. It creates one of everything that
// could remain.
func leaveBehind() {
	what := os.Getenv(leftoverEnv)
	if what == "exit" {
		os.Exit(7)
	}
	if err := litter(context.Background(), what == "cluster"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("up")
	if what == "panic" {
		panic("on purpose")
	}
	select {}
}

func litter(ctx context.Context, cluster bool) error {
	var n *Network
	var err error
	if cluster {
		c, startErr := Start(ctx, Options{})
		err = startErr
		if err == nil {
			n = c.Network
		}
	} else {
		n, err = OpenNetwork()
	}
	if err != nil {
		return err
	}
	ns, err := n.AddNamespace("backend", "203.0.113.10")
	if err != nil {
		return err
	}
	if err := ns.Drop(netip.MustParseAddrPort("203.0.113.10:1")); err != nil {
		return err
	}
	if _, err := ns.StartDNS(ctx, map[string]string{"example.com": ""}, ""); err != nil {
		return err
	}
	return ns.Command(ctx, "setsid", "sleep", "1000").Start()
}

// serveOutside is the program that TestHandedSocketStaysOutside asks. It answers one connection
// from inside, on a socket that it has opened outside.
func serveOutside() {
	var err error
	if Nsenter() == "" {
		err = enterWithSocket()
	} else {
		err = answerOnce(Files())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// enterWithSocket prints where it listens, and enters. It returns only with an error.
func enterWithSocket() error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	Enter(file)
	return nil
}

func answerOnce(files []*os.File) error {
	if len(files) != 1 {
		return fmt.Errorf("%d files are handed over", len(files))
	}
	listener, err := net.FileListener(files[0])
	if err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(conn, own)
	return err
}

// state is everything that could remain.
type state map[string]string

func look(t *testing.T) state {
	t.Helper()
	s := state{
		"mounts": read(t, "/proc/self/mountinfo"),
		"links":  run(t, "ip", "-brief", "link"),
		"rules":  run(t, "nft", "list", "ruleset"),
	}
	namespaces := map[string]bool{}
	for _, process := range glob(t, "/proc/[0-9]*") {
		if cmdline, err := os.ReadFile(process + "/cmdline"); err == nil {
			s["process "+filepath.Base(process)] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
		for _, kind := range []string{"net", "mnt", "pid", "user"} {
			if link, err := os.Readlink(process + "/ns/" + kind); err == nil {
				namespaces[link] = true
			}
		}
	}
	s["namespaces"] = fmt.Sprint(slices.Sorted(maps.Keys(namespaces)))
	for _, dir := range []string{os.Getenv("TMPDIR"), os.Getenv("DEVCLUSTER_CACHE"),
		filepath.Join(os.Getenv("DEVCLUSTER_CACHE"), "run")} {
		s["files in "+dir] = fmt.Sprint(glob(t, filepath.Join(dir, "*")))
	}
	return s
}

// ownDirectories gives the test a temporary directory and a cache of its own, with the existing
// binaries.
func ownDirectories(t *testing.T) {
	t.Helper()
	cache, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	if err := os.Mkdir(filepath.Join(own, "run"), 0o750); err != nil {
		t.Fatal(err)
	}
	built := edition{kubernetes: Kubernetes()}
	if err := os.Symlink(built.binDir(cache), built.binDir(own)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DEVCLUSTER_CACHE", own)
	t.Setenv("TMPDIR", t.TempDir())
}

// changes returns the differences between two states.
func (s state) changes(now state) string {
	var text strings.Builder
	for key := range s {
		if s[key] != now[key] {
			fmt.Fprintf(&text, "%s: %q became %q\n", key, s[key], now[key])
		}
	}
	for key := range now {
		if _, ok := s[key]; !ok {
			fmt.Fprintf(&text, "new: %s: %q\n", key, now[key])
		}
	}
	return text.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}

// child returns the only child of a process. Each thread lists the children that it has started.
func child(t *testing.T, pid int) int {
	t.Helper()
	var children strings.Builder
	for _, list := range glob(t, fmt.Sprintf("/proc/%d/task/*/children", pid)) {
		children.WriteString(read(t, list))
	}
	id, err := strconv.Atoi(strings.TrimSpace(children.String()))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// A program with a cluster leaves nothing behind, in whatever way it ends.
func TestNothingIsLeftBehind(t *testing.T) {
	kill := func(find func(t *testing.T, outer int) int, signal syscall.Signal) func(*testing.T, int) {
		return func(t *testing.T, outer int) {
			if err := syscall.Kill(find(t, outer), signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	outer := func(_ *testing.T, outer int) int { return outer }
	pid1 := func(t *testing.T, outer int) int { return child(t, outer) }
	program := func(t *testing.T, outer int) int { return child(t, child(t, outer)) }
	group := func(_ *testing.T, outer int) int { return -outer }
	for _, test := range []struct {
		name, what string
		end        func(t *testing.T, outer int)
		code       int // -1: killed
	}{
		{"kill -9 of the outer process, whole cluster", "cluster", kill(outer, syscall.SIGKILL), -1},
		{"kill -9 of the outer process", "network", kill(outer, syscall.SIGKILL), -1},
		{"kill -9 of PID 1", "network", kill(pid1, syscall.SIGKILL), 128 + 9},
		{"kill -9 of the program", "network", kill(program, syscall.SIGKILL), 128 + 9},
		{"Ctrl-C", "network", kill(group, syscall.SIGINT), 128 + 2},
		{"SIGTERM", "network", kill(outer, syscall.SIGTERM), 128 + 15},
		{"panic", "panic", func(*testing.T, int) {}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			ownDirectories(t)
			t.Setenv(leftoverEnv, test.what)
			before := look(t)
			cmd := exec.Command("/proc/self/exe")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if line != "up\n" {
				t.Fatalf("the program says %q, %v", line, err)
			}
			test.end(t, cmd.Process.Pid)
			_, _ = io.Copy(io.Discard, stdout) // ends when the last process that has it is gone
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != test.code {
				t.Errorf("exit code %d, want %d", got, test.code)
			}
			for deadline := time.Now().Add(20 * time.Second); ; {
				changes := before.changes(look(t))
				if changes == "" {
					return
				}
				if time.Now().After(deadline) {
					t.Fatal(changes)
				}
			}
		})
	}
}

// Outside, the exit status is that of the program inside.
func TestExitStatusIsThatOfProgram(t *testing.T) {
	t.Setenv(leftoverEnv, "exit")
	err := exec.Command("/proc/self/exe").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("%v, want exit status 7", err)
	}
}

// A socket that is handed over answers in the network in which it was opened, and its program runs
// in another one.
func TestHandedSocketStaysOutside(t *testing.T) {
	t.Setenv(leftoverEnv, "serve")
	cmd := exec.Command("/proc/self/exe")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp4", strings.TrimSpace(address))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	network, err := io.ReadAll(conn)
	own := run(t, "readlink", "/proc/self/ns/net")
	if err != nil || !strings.HasPrefix(string(network), "net:") || string(network) == strings.TrimSpace(own) {
		t.Errorf("the program runs in %q, the test in %q: %v", network, own, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// PID 1 reaps a grandchild whose parent has ended.
func TestOrphansAreReaped(t *testing.T) {
	pid := strings.TrimSpace(run(t, "sh", "-c", "true >/dev/null 2>&1 & echo $!"))
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s remains: %s", pid, read(t, "/proc/"+pid+"/status"))
		}
	}
}

// Outside of the namespaces, the library does not change the machine's own network.
func TestOutsideIsRefused(t *testing.T) {
	inside = false
	defer func() { inside = true }()
	if _, err := OpenNetwork(); !errors.Is(err, errOutside) {
		t.Errorf("OpenNetwork: %v", err)
	}
	if _, err := Start(t.Context(), Options{}); !errors.Is(err, errOutside) {
		t.Errorf("Start: %v", err)
	}
	t.Setenv("DEVCLUSTER_CACHE", t.TempDir())
	if _, err := JoinNamespace("machine"); !errors.Is(err, errNoNetwork) {
		t.Errorf("JoinNamespace: %v", err)
	}
}
