package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// repository is where files are that are not pages.
const repository = "https://github.com/external-backend/operator/blob/main/"

//go:embed page.html
var pageHTML string

//go:embed style.css
var style string

var layout = template.Must(template.New("page").Parse(pageHTML))

// writeSite writes all pages and the stylesheet.
func writeSite(out string, pages map[string]*page, navigation []section) error {
	for _, p := range pages {
		html, err := p.html(pages, navigation)
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		if err := writeFile(filepath.Join(out, filepath.FromSlash(address(p.path))), html); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(out, "style.css"), []byte(style))
}

func writeFile(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, content, 0o644)
}

// address returns where the page of a Markdown file is in the website.
func address(file string) string {
	if path.Base(file) == "README.md" {
		return path.Join(path.Dir(file), "index.html")
	}
	return strings.TrimSuffix(file, ".md") + ".html"
}

// html returns the page in the layout of the website.
func (p *page) html(pages map[string]*page, navigation []section) ([]byte, error) {
	p.rewriteLinks(pages)
	var body, out bytes.Buffer
	if err := markdown.Renderer().Render(&body, p.source, p.tree); err != nil {
		return nil, err
	}
	err := layout.Execute(&out, map[string]any{
		"Title":      p.title,
		"Style":      p.relative("style.css"),
		"Home":       p.relative("index.html"),
		"Navigation": p.navigation(navigation),
		"Source":     repository + p.path,
		"Body":       template.HTML(body.String()),
	})
	return out.Bytes(), err
}

// rewriteLinks lets links to Markdown files lead to their pages, and other links into the
// repository to its files on GitHub.
func (p *page) rewriteLinks(pages map[string]*page) {
	for _, l := range p.links {
		node, ok := l.node.(*ast.Link)
		file, fragment, inside := p.resolve(l.destination)
		if !ok || !inside || strings.HasPrefix(l.destination, "#") {
			continue
		}
		destination := repository + file
		if _, isPage := pages[file]; isPage {
			destination = p.relative(address(file))
		}
		if fragment != "" {
			destination += "#" + fragment
		}
		node.Destination = []byte(destination)
	}
}

// relative returns how the page links to another file of the website.
func (p *page) relative(file string) string {
	return strings.Repeat("../", strings.Count(p.path, "/")) + file
}

// navigationLink is an entry of the navigation as one page shows it.
type navigationLink struct {
	Title, Address string
	Current        bool
}

// navigation returns the sections as the page shows them.
func (p *page) navigation(sections []section) (out []map[string]any) {
	for _, s := range sections {
		var links []navigationLink
		current := false
		for _, e := range s.Pages {
			links = append(links, navigationLink{e.Title, p.relative(address(e.path)), e.path == p.path})
			current = current || e.path == p.path
		}
		out = append(out, map[string]any{"Title": s.Title, "Pages": links, "Current": current})
	}
	return out
}
