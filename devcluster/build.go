package devcluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	etcdVersion    = "v3.6.16"
	corednsVersion = "v1.15.0"
)

// corednsPlugins lists the plugins that a cluster or a nameserver needs. The standard CoreDNS
// includes the SDKs of several clouds.
var corednsPlugins = []string{"cache", "errors", "erratic", "file", "forward",
	"kubernetes", "log", "ready", "template", "tls"}

// envtestBinaries lists the binaries that KUBEBUILDER_ASSETS and Assets have.
var envtestBinaries = []string{"etcd", "kube-apiserver", "kubectl"}

// product is a Go module from which binaries are built. Each product has its own main module,
// because products need different versions of shared modules.
type product struct {
	name    string
	module  string
	version string
	// staging is the version of the modules that upstream's go.mod replaces by its own tree. If it is
	// empty, such replacements are dropped.
	staging string
	mains   map[string]string // binary name -> package
	ldflags string
	source  string // content of main.go; "": none
}

func products(kubernetes string) []product {
	var main, stamp strings.Builder
	main.WriteString("package main\n\nimport (\n\t\"github.com/coredns/coredns/coremain\"\n")
	for _, plugin := range corednsPlugins {
		fmt.Fprintf(&main, "\t_ %q\n", "github.com/coredns/coredns/plugin/"+plugin)
	}
	main.WriteString(")\n\nfunc main() { coremain.Run() }\n")

	numbers := strings.SplitN(strings.TrimPrefix(kubernetes, "v"), ".", 3)
	// kubectl reads its version from another of these packages than the other binaries.
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		fmt.Fprintf(&stamp, " -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s"+
			" -X %[1]s.gitTreeState=clean -X %[1]s.buildDate=1970-01-01T00:00:00Z", pkg, kubernetes, numbers[0], numbers[1])
	}
	mains := map[string]string{}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-proxy", "kubectl"} {
		mains[name] = "k8s.io/kubernetes/cmd/" + name
	}
	return []product{
		{name: "etcd", module: "go.etcd.io/etcd/server/v3", version: etcdVersion,
			mains: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"}},
		{name: "coredns", module: "github.com/coredns/coredns", version: corednsVersion,
			mains: map[string]string{"coredns": "."}, source: main.String()},
		{name: "kubernetes", module: "k8s.io/kubernetes", version: kubernetes, mains: mains, ldflags: stamp.String(),
			staging: "v0" + strings.TrimPrefix(kubernetes, "v1")},
	}
}

// QuickBuild are flags with which Go compiles in two thirds of the time. The binaries are slower.
var QuickBuild = []string{"-trimpath", "-gcflags=all=-N -l -dwarf=false"}

// edition selects binaries.
type edition struct {
	kubernetes string // version
	quick      bool   // compiled with QuickBuild, unless the usual ones are there
}

// flags returns the flags of `go build`.
func (e edition) flags() []string {
	if e.quick {
		return QuickBuild
	}
	return []string{"-trimpath"}
}

// binDir returns the directory with all binaries of the edition. Its name contains version,
// platform and a hash of the build, so its content is never stale.
func (e edition) binDir(cache string) string {
	recipe := sha256.Sum256(fmt.Append(nil, products(e.kubernetes)))
	name := fmt.Sprintf("kubernetes-%s-%s-%s-%x", e.kubernetes, runtime.GOOS, runtime.GOARCH, recipe[:4])
	if e.quick {
		name += "-quick"
	}
	return filepath.Join(cache, name)
}

// Ensure builds missing binaries for the given Kubernetes versions (none: the selected one), and
// reports to progress, which may be nil. It needs the network (the Go module proxy), so call it
// before [Enter].
func Ensure(ctx context.Context, progress io.Writer, versions ...string) error {
	if len(versions) == 0 {
		versions = []string{""}
	}
	for _, version := range versions {
		if _, err := ensure(ctx, progress, edition{kubernetes: version}); err != nil {
			return err
		}
	}
	return nil
}

// EnsureFor builds only the missing binaries that a cluster with these options needs. Otherwise it
// is like [Ensure].
func EnsureFor(ctx context.Context, progress io.Writer, options Options) error {
	_, err := ensure(ctx, progress, options.edition(), options.binaries()...)
	return err
}

// Assets returns the directory with etcd, kube-apiserver and kubectl, for envtest's
// BinaryAssetsDirectory: $KUBEBUILDER_ASSETS, or our own directory, whose missing binaries it
// builds. It needs no namespaces.
func Assets(ctx context.Context) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	binaries, err := ensure(ctx, os.Stderr, edition{}, envtestBinaries...)
	if err != nil {
		return "", err
	}
	return filepath.Dir(binaries["kubectl"]), nil
}

// ensure returns the paths of the binaries by name, once the named ones (none: all) exist.
//
//  1. Those in KUBEBUILDER_ASSETS are used from there.
//  2. The others are looked up in the cache. If none is missing, this is all.
//  3. Under a lock, the missing ones are built in a scratch directory, one product after the other,
//     and renamed into place. The modules of the next products are downloaded meanwhile.
func ensure(ctx context.Context, progress io.Writer, wanted edition, names ...string) (map[string]string, error) {
	var err error
	if wanted.kubernetes, err = orSelected(wanted.kubernetes); err != nil {
		return nil, err
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	paths, missing := locate(cache, wanted, names)
	if len(missing) == 0 {
		return paths, nil
	}
	if progress == nil {
		progress = io.Discard
	}
	unlock, err := lockCache(ctx, cache, progress)
	if err != nil {
		return nil, err
	}
	defer unlock()

	_, missing = locate(cache, wanted, names) // another process may have built them meanwhile
	if err := buildMissing(ctx, progress, cache, wanted, missing); err != nil {
		return nil, err
	}
	if _, missing = locate(cache, wanted, names); len(missing) > 0 {
		return nil, fmt.Errorf("devcluster: still missing after the build: %s", strings.Join(missing, ", "))
	}
	return paths, nil
}

// locate returns the paths of the binaries by name, and which of the named ones (none: all) are
// missing.
func locate(cache string, wanted edition, names []string) (paths map[string]string, missing []string) {
	paths = map[string]string{}
	usual := edition{kubernetes: wanted.kubernetes}
	for _, p := range products(wanted.kubernetes) {
		for name := range p.mains {
			paths[name] = filepath.Join(usual.binDir(cache), name)
			if _, err := os.Stat(paths[name]); err != nil {
				paths[name] = filepath.Join(wanted.binDir(cache), name)
			}
		}
	}
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		for _, name := range envtestBinaries {
			paths[name] = filepath.Join(assets, name)
		}
	}
	for name, path := range paths {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return paths, missing
}

// lockCache makes sure that only one process builds. The kernel frees the lock when the process
// ends.
func lockCache(ctx context.Context, cache string, progress io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return nil, fmt.Errorf("devcluster: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("devcluster: %w", err)
	}
	for waited := false; ; waited = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("devcluster: lock %s: %w", file.Name(), err)
		}
		if !waited {
			fmt.Fprintln(progress, "devcluster: waiting for another process that builds")
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// buildMissing builds the named binaries in the cache's scratch directory, and moves each complete
// binary into place. The caller holds the lock. A killed build may have left a scratch directory.
func buildMissing(
	ctx context.Context, progress io.Writer, cache string, wanted edition, missing []string,
) error {
	scratch := filepath.Join(cache, "build")
	if err := os.RemoveAll(scratch); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var builds []*productBuild
	for _, p := range products(wanted.kubernetes) {
		names := slices.DeleteFunc(slices.Clone(missing), func(name string) bool { return p.mains[name] == "" })
		if len(names) > 0 {
			builds = append(builds, &productBuild{
				product: p, names: names, flags: wanted.flags(), dir: filepath.Join(scratch, p.name), bin: wanted.binDir(cache),
			})
		}
	}

	var downloads sync.WaitGroup
	defer func() {
		cancel()
		downloads.Wait()
		os.RemoveAll(scratch)
	}()
	for _, b := range builds {
		ready := make(chan error, 1)
		b.downloaded = ready
		downloads.Go(func() { ready <- b.download(ctx) })
	}
	for _, b := range builds {
		fmt.Fprintf(progress, "devcluster: %s %s: download the modules\n", b.product.name, b.product.version)
		err := <-b.downloaded
		if err == nil {
			err = b.compile(ctx, progress)
		}
		if err != nil {
			return fmt.Errorf("devcluster: build %s %s: %w", b.product.name, b.product.version, err)
		}
	}
	return nil
}

// productBuild builds some of a product's binaries in a directory of its own.
type productBuild struct {
	product  product
	names    []string // of the binaries
	flags    []string // of go build
	dir, bin string   // where they are built, and where they belong

	downloaded <-chan error // the outcome of download
	packages   int          // how many there are to compile; known after download
}

// download writes the main module, and downloads the modules of all packages.
func (b *productBuild) download(ctx context.Context) error {
	if err := errors.Join(os.MkdirAll(filepath.Join(b.dir, "tmp"), 0o750),
		os.MkdirAll(filepath.Join(b.dir, "out"), 0o750), os.MkdirAll(b.bin, 0o750)); err != nil {
		return err
	}
	if err := b.product.writeModule(ctx, b.dir); err != nil {
		return err
	}
	deps, err := goTool(ctx, b.dir, nil, append([]string{"list", "-deps"}, b.mains()...)...)
	b.packages = bytes.Count(deps, []byte("\n"))
	return err
}

// compile builds the binaries, and moves them to where they belong.
func (b *productBuild) compile(ctx context.Context, progress io.Writer) error {
	out := filepath.Join(b.dir, "out") + "/"
	if len(b.names) == 1 {
		out += b.names[0]
	}
	title := fmt.Sprintf("devcluster: %s %s: %s", b.product.name, b.product.version, strings.Join(b.names, ", "))
	report := newCounter(progress, title, b.packages)
	args := slices.Concat([]string{"build", "-v", "-ldflags=-s -w" + b.product.ldflags, "-o", out}, b.flags, b.mains())
	_, err := goTool(ctx, b.dir, report, args...)
	report.close()
	if err != nil {
		return err
	}
	for _, name := range b.names {
		if err := os.Rename(filepath.Join(b.dir, "out", name), filepath.Join(b.bin, name)); err != nil {
			return err
		}
	}
	return nil
}

// mains returns the packages of the binaries.
func (b *productBuild) mains() []string {
	var list []string
	for _, name := range b.names {
		list = append(list, b.product.mains[name])
	}
	return list
}

var (
	moduleLine    = regexp.MustCompile(`(?m)^(module|toolchain) .*\n`)
	unreleased    = regexp.MustCompile(`(?m) v0\.0\.0$`)
	stagedReplace = regexp.MustCompile(`(?m)^(\s*)(\S+) => \./staging/\S+$`)
	localReplace  = regexp.MustCompile(`(?m)^.* => \.\.?/.*\n`)
)

// writeModule writes a main module that requires the product, with exactly the versions in the
// product's go.mod. Upstream's go.sum and the checksum database verify all downloads.
func (p product) writeModule(ctx context.Context, dir string) error {
	answer, err := goTool(ctx, dir, nil, "mod", "download", "-json", p.module+"@"+p.version)
	if err != nil {
		return err
	}
	var upstream struct{ Dir string }
	if err := json.Unmarshal(answer, &upstream); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(upstream.Dir, "go.mod"))
	if err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(upstream.Dir, "go.sum"))
	if err != nil {
		return err
	}
	source := cmp.Or(p.source, "package main\n")
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "go.mod"), p.goMod(mod), 0o600),
		os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600),
		os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600))
}

// goMod turns upstream's go.mod into that of the main module. It replaces modules in upstream's own
// tree by their published versions, and drops the toolchain, so that the user's is used.
func (p product) goMod(upstream []byte) []byte {
	mod := moduleLine.ReplaceAll(upstream, nil)
	if p.staging != "" {
		mod = unreleased.ReplaceAll(mod, []byte(" "+p.staging))
		mod = stagedReplace.ReplaceAll(mod, []byte("$1$2 => $2 "+p.staging))
	}
	mod = localReplace.ReplaceAll(mod, nil)
	return fmt.Appendf(nil, "module devcluster.invalid/%s\n%s\nrequire %s %s\n", p.name, mod, p.module, p.version)
}

// goTool runs the go command in dir and returns its output. Its messages go to progress and into
// the error.
func goTool(ctx context.Context, dir string, progress io.Writer, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The user's flags, workspace or cross-compilation must not change the build.
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GO111MODULE=on", "CGO_ENABLED=0", "GOOS=", "GOARCH=",
		"GOTMPDIR="+filepath.Join(dir, "tmp"), "PWD="+dir)
	var stdout bytes.Buffer
	said := &tail{next: progress}
	cmd.Stdout, cmd.Stderr = &stdout, said
	// The build has its own process group, so that a Ctrl-C reaches only the program. It ends with its
	// caller.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], cmp.Or(ctx.Err(), err), said)
	}
	return stdout.Bytes(), nil
}

// tail keeps the last 4 KiB of what is written to it, and writes everything to next.
type tail struct {
	next io.Writer
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const limit = 4 << 10
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-limit):]
	if t.next != nil {
		return t.next.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.TrimSpace(t.kept)) }

// counter counts the lines of `go build -v`, one per compiled package, and reports their number
// every ten seconds.
type counter struct {
	title string
	total int // all packages; those in the build cache are not compiled again
	begin time.Time
	lines atomic.Int64
	stop  chan struct{}
	done  sync.WaitGroup
}

func newCounter(progress io.Writer, title string, total int) *counter {
	c := &counter{title: title, total: total, begin: time.Now(), stop: make(chan struct{})}
	report := func(what string) {
		fmt.Fprintf(progress, "%s: %s, %d of up to %d packages, %v\n", c.title, what, c.lines.Load(), c.total,
			time.Since(c.begin).Round(time.Second))
	}
	c.done.Go(func() {
		every := time.NewTicker(10 * time.Second)
		defer every.Stop()
		report("compile")
		for {
			select {
			case <-every.C:
				report("compile")
			case <-c.stop:
				report("end")
				return
			}
		}
	})
	return c
}

func (c *counter) Write(p []byte) (int, error) {
	c.lines.Add(int64(bytes.Count(p, []byte("\n"))))
	return len(p), nil
}

func (c *counter) close() {
	close(c.stop)
	c.done.Wait()
}
