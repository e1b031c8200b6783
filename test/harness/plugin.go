package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// buildPlugin builds the kubectl plugin once, and returns the path of its binary.
var buildPlugin = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", "test-kubectl-external_backend")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/kubectl-external_backend")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "PWD="+root)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// Plugin returns the path of the kubectl plugin's binary.
func (h *Test) Plugin() string {
	h.T.Helper()
	path, err := buildPlugin()
	h.ok(err)
	return path
}

// FollowImport does what the plugin's import tells the user to do: it runs each command that is
// printed as a comment, in a shell with kubectl, with the rights of a kubeconfig. FILE is a file
// with all that is printed.
func (h *Test) FollowImport(kubeconfig, printed string) error {
	file, err := os.CreateTemp(h.T.TempDir(), "*.yaml")
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteString(printed); err != nil {
		return err
	}

	commands := 0
	for lines := bufio.NewScanner(strings.NewReader(printed)); lines.Scan(); {
		command, is := strings.CutPrefix(lines.Text(), "# $ ")
		if !is {
			continue
		}
		commands++
		cmd := exec.CommandContext(h.T.Context(), "sh", "-ec", strings.Replace(command, "FILE", file.Name(), 1))
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+h.Bin+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	if commands == 0 {
		return fmt.Errorf("there is no command in:\n%s", printed)
	}
	return nil
}
