package integration

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/external-backend/operator/test/harness"
)

// pluginUser runs the kubectl plugin with the rights of one user.
type pluginUser struct {
	h                *harness.Test
	path, kubeconfig string
}

// editor returns a user who has in the test's namespace the rights of Kubernetes' edit, and may
// write ExternalBackends.
func editor(h *harness.Test) *pluginUser {
	h.T.Helper()
	return newPluginUser(h, "editor", "edit", "external-backend-externalbackend-editor-role")
}

// newPluginUser returns a user with ClusterRoles in the test's namespace.
func newPluginUser(h *harness.Test, name string, clusterRoles ...string) *pluginUser {
	h.T.Helper()
	user := name + "-of-" + h.Namespace
	for i, role := range clusterRoles {
		h.Apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %s-%d}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %s}]`, name, i, role, user)
	}
	kubeconfig, err := h.UserKubeconfig(user)
	if err != nil {
		h.T.Fatal(err)
	}
	return &pluginUser{h: h, path: h.Plugin(), kubeconfig: kubeconfig}
}

// run runs a command of the plugin in the test's namespace. It returns what the command prints and
// its exit code.
func (u *pluginUser) run(t *testing.T, input string, args ...string) (out, errOut string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), u.path,
		append([]string{"--kubeconfig", u.kubeconfig, "-n", u.h.Namespace}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// want runs the plugin, and fails the test unless it exits with this code and prints these texts.
func (u *pluginUser) want(code int, texts []string, args ...string) string {
	u.h.T.Helper()
	out, errOut, got := u.run(u.h.T, "", args...)
	output := out + errOut
	if got != code {
		u.h.T.Fatalf("%s exits with %d:\n%s", strings.Join(args, " "), got, output)
	}
	for _, text := range texts {
		if !strings.Contains(output, text) {
			u.h.T.Errorf("%s does not say %q:\n%s", strings.Join(args, " "), text, output)
		}
	}
	return output
}

// runningPlugin is a command of the plugin that goes on until it is interrupted.
type runningPlugin struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer
}

// start starts a command of the plugin in the test's namespace.
func (u *pluginUser) start(args ...string) *runningPlugin {
	u.h.T.Helper()
	running := &runningPlugin{cmd: exec.CommandContext(u.h.T.Context(), u.path,
		append([]string{"--kubeconfig", u.kubeconfig, "-n", u.h.Namespace}, args...)...)}
	running.cmd.Stdout, running.cmd.Stderr = running, running
	if err := running.cmd.Start(); err != nil {
		u.h.T.Fatal(err)
	}
	return running
}

// Write collects what the command prints.
func (r *runningPlugin) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(text)
}

// String returns what the command has printed.
func (r *runningPlugin) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// interrupt ends the command as Ctrl-C does, and returns how it has ended.
func (r *runningPlugin) interrupt() error {
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return r.cmd.Wait()
}
