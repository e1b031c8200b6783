package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const flagsIntroduction = `# Flags of the manager

What ` + "`manager --help`" + ` prints. The Deployment of the manifests sets %s.
[Operations](../operations.md) says when to change the others.

`

// helpFlag is one flag in the form in which package flag prints it.
type helpFlag struct {
	name, kind, value, usage string
}

var (
	flagLine    = regexp.MustCompile(`^  -(\S+)(?: (\S+))?$`)
	flagDefault = regexp.MustCompile(`^(?s)(.*?)\s*\(default (.*)\)$`)
)

// parseHelp reads the text that package flag prints.
func parseHelp(help string) ([]helpFlag, error) {
	var out []helpFlag
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		switch match := flagLine.FindStringSubmatch(line); {
		case match != nil:
			out = append(out, helpFlag{name: match[1], kind: match[2]})
		case strings.HasPrefix(line, "    \t") && len(out) > 0:
			last := &out[len(out)-1]
			last.usage = strings.TrimSpace(last.usage + " " + strings.TrimSpace(line))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no flag in %q", help)
	}

	for i := range out {
		f := &out[i]
		if match := flagDefault.FindStringSubmatch(f.usage); match != nil {
			f.usage, f.value = match[1], strings.Trim(match[2], `"`)
		}
		if f.kind == "" {
			f.kind = "true or false"
			f.value = max(f.value, "false")
		}
	}
	slices.SortFunc(out, func(a, b helpFlag) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// flagsPage lists the flags of the manager.
func flagsPage(root, help string) (string, error) {
	flags, err := parseHelp(help)
	if err != nil {
		return "", err
	}
	set, err := deploymentFlags(root)
	if err != nil {
		return "", err
	}

	var out strings.Builder
	fmt.Fprintf(&out, generated, "cmd/main.go")
	for i := range set {
		set[i] = code(set[i])
	}
	introduction := fmt.Sprintf(flagsIntroduction, strings.Join(set, " "))
	title, text, _ := strings.Cut(introduction, "\n\n")
	fmt.Fprintf(&out, "%s\n\n%s\n", title, paragraph(text))
	header(&out, "flag", "value", "default", "meaning")
	for _, f := range flags {
		value := ""
		if f.value != "" {
			value = code(f.value)
		}
		cells(&out, code("--"+f.name), f.kind, value, sentence(escape(f.usage)))
	}
	return out.String(), nil
}

// deploymentFlags returns the arguments of the manager in the manifests.
func deploymentFlags(root string) ([]string, error) {
	file := filepath.Join(root, "config/manager/manager.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var deployment struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct{ Containers []struct{ Args []string } }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if deployment.Kind == "Deployment" && len(deployment.Spec.Template.Spec.Containers) == 1 {
			return deployment.Spec.Template.Spec.Containers[0].Args, nil
		}
	}
	return nil, fmt.Errorf("%s has no Deployment with one container", file)
}
