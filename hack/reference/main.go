// Command reference writes the reference pages in docs/reference from what they describe: the
// CustomResourceDefinitions and the defaults of api/v1alpha1, the comments of the words that
// conditions and events use, and the manager's own --help. `make docs` runs it, and `make verify`
// fails if a page is not current.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "the directory of the repository")
	manager := flag.String("manager", "bin/manager", "the manager, whose --help lists the flags")
	flag.Parse()
	if err := run(*root, *manager); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// run writes all pages.
func run(root, manager string) error {
	api, err := apiPage(root)
	if err != nil {
		return err
	}
	words, err := wordsPage(root)
	if err != nil {
		return err
	}
	help, err := helpText(manager)
	if err != nil {
		return err
	}
	flags, err := flagsPage(root, help)
	if err != nil {
		return err
	}

	dir := filepath.Join(root, "docs/reference")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var failed []error
	for name, page := range map[string]string{"api.md": api, "events-and-reasons.md": words, "flags.md": flags} {
		failed = append(failed, os.WriteFile(filepath.Join(dir, name), []byte(page), 0o644))
	}
	return errors.Join(failed...)
}

// helpText returns what the manager prints for --help.
func helpText(manager string) (string, error) {
	var out bytes.Buffer
	command := exec.Command(manager, "--help")
	command.Stdout, command.Stderr = &out, &out
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s --help: %w (make build writes it)\n%s", manager, err, &out)
	}
	return out.String(), nil
}

// generated is the first line of every page. It is no heading and is not shown.
const generated = "<!-- Written by `make docs`. Change what it describes instead: %s. -->\n\n"
