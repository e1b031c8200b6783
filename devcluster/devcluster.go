// Package devcluster is a Kubernetes control plane for development and tests. It is built from Go
// modules, runs without containers, and leaves nothing behind.
//
// # Binaries
//
// [Ensure] builds etcd, kube-apiserver, kube-controller-manager, kube-proxy, kubectl and CoreDNS
// once, and keeps them in the user's cache directory. The first build takes minutes, every later
// start seconds. [Assets] returns those that controller-runtime's envtest needs.
//
// # Isolation
//
// [Main] (for tests) and [Enter] (for commands) start the program again as the second process of
// new PID, network and mount namespaces, and of a user namespace if the user is not root.
// Everything that a cluster creates is in them: processes, network namespaces, veths, nftables
// rules, and a tmpfs for data. When the program ends, in whatever way, the kernel removes all of
// it. So there is no clean-up code that could be skipped.
//
// # Topology
//
// [OpenNetwork] creates a bridge with addresses from the documentation ranges (RFC 5737, RFC 3849)
// in the program's own network namespace. [Network.AddNamespace] connects further namespaces to it,
// which stand for machines outside the cluster. [Start] adds the control plane, a namespace that is
// the only Node, with kube-proxy in it, and one for the cluster's DNS:
//
//	program, etcd, kube-apiserver, kube-controller-manager    203.0.113.1   2001:db8:113::1
//	node: kube-proxy                                          203.0.113.2   2001:db8:113::2
//	dns: CoreDNS for cluster.local                            203.0.113.53  2001:db8:113::53
//	backends, clients                                         any other address
//
// The program itself is not a node: it reaches ClusterIPs by a route through the node, as a Pod
// does. The package works on Linux only.
package devcluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// DefaultKubernetes is the version that runs unless DEVCLUSTER_KUBERNETES names another.
const DefaultKubernetes = "v1.37.2"

// systemPath has the directories of nft and ip on Debian, which are not in an ordinary user's PATH.
const systemPath = ":/usr/local/sbin:/usr/sbin:/sbin"

// Kubernetes returns the selected version: $DEVCLUSTER_KUBERNETES (with or without the v), or
// DefaultKubernetes.
func Kubernetes() string {
	if v := os.Getenv("DEVCLUSTER_KUBERNETES"); v != "" {
		return "v" + strings.TrimPrefix(v, "v")
	}
	return DefaultKubernetes
}

var releaseVersion = regexp.MustCompile(`^v1\.\d+\.\d+$`)

// orSelected returns version, or the selected version if it is empty. Any other text is an error.
func orSelected(version string) (string, error) {
	if version == "" {
		version = Kubernetes()
	}
	if !releaseVersion.MatchString(version) {
		return "", fmt.Errorf("devcluster: %q is not a Kubernetes version such as %s", version, DefaultKubernetes)
	}
	return version, nil
}

// cacheDir returns $DEVCLUSTER_CACHE, or a directory in the user's cache. It holds the binaries,
// and the empty directory on which each cluster mounts its tmpfs.
func cacheDir() (string, error) {
	if dir := os.Getenv("DEVCLUSTER_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("devcluster: no cache directory, set DEVCLUSTER_CACHE: %w", err)
	}
	return filepath.Join(dir, "external-backend-devcluster"), nil
}

// Missing returns the Debian packages that a cluster needs and this machine does not have.
func Missing() []string {
	var packages []string
	for _, need := range []struct{ command, debian string }{
		{"ip", "iproute2"}, {"nft", "nftables"}, {"nsenter", "util-linux"},
	} {
		if _, err := lookTool(need.command); err != nil {
			packages = append(packages, need.debian)
		}
	}
	return packages
}

// lookTool is exec.LookPath, but also looks in the directories of systemPath.
func lookTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for dir := range strings.SplitSeq(systemPath[1:], ":") {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}
