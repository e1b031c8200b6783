package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// index is the page that lists all others.
const index = "docs/README.md"

// checkLinks returns an error for each link that leads to no file or no heading of the repository.
// It asks nobody about links to elsewhere.
func checkLinks(root string, pages map[string]*page) []error {
	var out []error
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		p := pages[name]
		for _, l := range p.links {
			file, fragment, ok := p.resolve(l.destination)
			if !ok {
				continue
			}
			if strings.HasPrefix(file, "..") {
				out = append(out, fmt.Errorf("%s: %s leads out of the repository", name, l.destination))
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
				out = append(out, fmt.Errorf("%s: %s leads to no file", name, l.destination))
				continue
			}
			target, isPage := pages[file]
			if fragment != "" && isPage && !slices.Contains(target.anchors, fragment) {
				out = append(out, fmt.Errorf("%s: %s leads to no heading of %s", name, l.destination, file))
			}
		}
	}
	return out
}

// section is a group of pages in the navigation.
type section struct {
	Title string
	Pages []entry
}

// entry is one page in the navigation.
type entry struct {
	Title, path string
}

// readNavigation returns the sections of the index and the pages to which each of them links. Every
// page below docs must be in it.
func readNavigation(pages map[string]*page) ([]section, error) {
	p, ok := pages[index]
	if !ok {
		return nil, fmt.Errorf("there is no %s, which lists the pages", index)
	}

	var out []section
	seen := map[string]bool{index: true}
	for _, l := range p.links {
		file, _, ok := p.resolve(l.destination)
		if _, isPage := pages[file]; !ok || !isPage || seen[file] {
			continue
		}
		seen[file] = true
		if len(out) == 0 || out[len(out)-1].Title != l.heading {
			out = append(out, section{Title: l.heading})
		}
		last := &out[len(out)-1]
		last.Pages = append(last.Pages, entry{l.text, file})
	}

	for _, name := range slices.Sorted(maps.Keys(pages)) {
		if strings.HasPrefix(name, "docs/") && !seen[name] {
			return nil, fmt.Errorf("%s does not link to %s", index, name)
		}
	}
	return out, nil
}
