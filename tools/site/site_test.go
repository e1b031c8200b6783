package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write makes a repository with the given files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		if err := writeFile(filepath.Join(root, name), []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Every link of this repository leads to a file and a heading, and its index lists every page.
func TestLinksOfThisRepositoryLeadSomewhere(t *testing.T) {
	if err := run("../..", ""); err != nil {
		t.Error(err)
	}
}

// A link to a missing file or heading is reported, with the page that has it.
func TestBrokenLinksAreReported(t *testing.T) {
	root := write(t, map[string]string{
		"README.md":      "# Home\n[a](docs/README.md) [b](missing.md) [c](#nowhere) [d](https://example.com/x#y) [e](../out)",
		"docs/README.md": "# Index\n## Part `one`, & more\n[f](#part-one--more) [g](../README.md#home) [h](../README.md#away)",
	})
	pages, err := readPages(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, err := range checkLinks(root, pages) {
		got = append(got, err.Error())
	}
	want := []string{
		"README.md: missing.md leads to no file",
		"README.md: #nowhere leads to no heading of README.md",
		"README.md: ../out leads out of the repository",
		"docs/README.md: ../README.md#away leads to no heading of README.md",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A page that the index does not list can't be found in the website, so it is an error.
func TestTheIndexListsEveryPage(t *testing.T) {
	root := write(t, map[string]string{
		"docs/README.md": "# Index\n## Use\n[Guide](guide.md)", "docs/guide.md": "# G", "docs/other.md": "# O",
	})
	if err := run(root, ""); err == nil || err.Error() != "docs/README.md does not link to docs/other.md" {
		t.Error(err)
	}
}

// Headings of the same text get different anchors, numbered as on GitHub.
func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	p := parsePage("a.md", []byte("# `spec.targets[]`\n## Why not …\n## Same\n## Same\n"))
	if want := []string{"spectargets", "why-not-", "same", "same-1"}; !slices.Equal(p.anchors, want) {
		t.Errorf("got %q, want %q", p.anchors, want)
	}
}

// In the website links lead from page to page, and to GitHub for other files.
func TestPagesLinkToPages(t *testing.T) {
	root := write(t, map[string]string{
		"README.md":      "# Home\n[guide](docs/guide.md#b)",
		"docs/README.md": "# Index\n## Use\n[Guide](guide.md)",
		"docs/guide.md":  "# A\n## B\n[home](../README.md) [file](../LICENSE) [below](#b)\n\n| a |\n|---|\n| b |",
		"LICENSE":        "free",
	})
	out := t.TempDir()
	if err := run(root, out); err != nil {
		t.Fatal(err)
	}
	for file, wants := range map[string][]string{
		"index.html": {`href="docs/guide.html#b"`, `<title>Home · `, `href="style.css"`},
		"docs/guide.html": {
			`href="../index.html"`, repository + `LICENSE"`, `href="#b"`, `<h2 id="b">`, `<table>`,
			`aria-current="page">Guide<`,
		},
	} {
		content, err := os.ReadFile(filepath.Join(out, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(content), want) {
				t.Errorf("%s lacks %s:\n%s", file, want, content)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(out, "style.css")); err != nil {
		t.Error(err)
	}
}
