package devcluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Both kinds of upstream go.mod become main modules that require only published versions.
func TestGoModRequiresPublishedVersions(t *testing.T) {
	for _, test := range []struct {
		product        product
		upstream, want string
	}{{
		product: product{name: "kubernetes", module: "k8s.io/kubernetes", version: "v1.37.2", staging: "v0.37.2"},
		upstream: `module k8s.io/kubernetes

go 1.26.0

require (
	github.com/x/y v0.0.0-20200101000000-abcdefabcdef
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
)
`,
		want: `module devcluster.invalid/kubernetes

go 1.26.0

require (
	github.com/x/y v0.0.0-20200101000000-abcdefabcdef
	k8s.io/api v0.37.2
)

replace (
	k8s.io/api => k8s.io/api v0.37.2
)

require k8s.io/kubernetes v1.37.2
`,
	}, {
		product: product{name: "etcd", module: "go.etcd.io/etcd/server/v3", version: "v3.6.16"},
		upstream: `module go.etcd.io/etcd/server/v3

toolchain go1.26.10

require go.etcd.io/etcd/api/v3 v3.6.16

replace go.etcd.io/etcd/api/v3 => ../api

replace go.etcd.io/etcd => ./FORBIDDEN_DEPENDENCY
`,
		want: `module devcluster.invalid/etcd

require go.etcd.io/etcd/api/v3 v3.6.16

require go.etcd.io/etcd/server/v3 v3.6.16
`,
	}} {
		got := strings.Fields(string(test.product.goMod([]byte(test.upstream))))
		if want := strings.Fields(test.want); !slices.Equal(got, want) {
			t.Errorf("%s: got\n%q, want\n%q", test.product.name, got, want)
		}
	}
}

// The etcd, kube-apiserver and kubectl in KUBEBUILDER_ASSETS are used instead of our own.
func TestKubebuilderAssetsArePreferred(t *testing.T) {
	cache, assets := t.TempDir(), t.TempDir()
	usual := edition{kubernetes: DefaultKubernetes}
	if _, missing := locate(cache, usual, nil); len(missing) != 6 {
		t.Errorf("an empty cache lacks %v", missing)
	}
	for _, name := range envtestBinaries {
		if err := os.WriteFile(filepath.Join(assets, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	paths, missing := locate(cache, usual, nil)
	if want := []string{"coredns", "kube-controller-manager", "kube-proxy"}; !slices.Equal(missing, want) {
		t.Errorf("missing %v, want %v", missing, want)
	}
	if paths["etcd"] != filepath.Join(assets, "etcd") ||
		filepath.Dir(paths["coredns"]) != usual.binDir(cache) {
		t.Errorf("paths: %v", paths)
	}
	if dir, err := Assets(t.Context()); err != nil || dir != assets {
		t.Errorf("Assets: %s, %v", dir, err)
	}
}

// The demonstration takes binaries of the usual build where they are, and quick ones elsewhere.
func TestUsualBinariesArePreferredToQuickOnes(t *testing.T) {
	cache := t.TempDir()
	usual, quick := edition{kubernetes: DefaultKubernetes}, edition{kubernetes: DefaultKubernetes, quick: true}
	for _, path := range []string{
		filepath.Join(usual.binDir(cache), "etcd"), filepath.Join(quick.binDir(cache), "kubectl"),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"etcd", "kubectl"}
	if paths, missing := locate(cache, quick, names); len(missing) > 0 ||
		filepath.Dir(paths["etcd"]) != usual.binDir(cache) || filepath.Dir(paths["kubectl"]) != quick.binDir(cache) {
		t.Errorf("quick: %v, without %v", paths, missing)
	}
	if paths, missing := locate(cache, usual, names); !slices.Equal(missing, []string{"kubectl"}) {
		t.Errorf("usual: %v, without %v", paths, missing)
	}
}

// make compiles the demonstration with the flags of its cluster and of its manager, so that they
// share packages.
func TestDemonstrationIsCompiledQuickly(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	want := "go build '" + strings.Join(QuickBuild, "' '") + "' -o ../bin/demo"
	if !strings.Contains(string(makefile), want) {
		t.Errorf("the Makefile lacks %s", want)
	}
}

// A second builder waits until the first one has finished.
func TestLockKeepsSecondBuilderOut(t *testing.T) {
	cache := t.TempDir()
	unlock, err := lockCache(t.Context(), cache, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockCache(ctx, cache, t.Output()); !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	if unlock, err = lockCache(t.Context(), cache, t.Output()); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// An empty version stands for the selected one, and any text that is not a version is refused.
func TestVersionIsDefaultedAndChecked(t *testing.T) {
	for env, want := range map[string]string{"": DefaultKubernetes, "1.36.4": "v1.36.4", "v1.36.4": "v1.36.4"} {
		t.Setenv("DEVCLUSTER_KUBERNETES", env)
		if got, err := orSelected(""); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", env, got, err, want)
		}
	}
	for _, bad := range []string{"latest", "1.37", "v1.37.2/../..", "v2.0.0"} {
		if got, err := orSelected(bad); err == nil {
			t.Errorf("%q is accepted as %s", bad, got)
		}
	}
}
