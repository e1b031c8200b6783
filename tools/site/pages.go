package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// page is one Markdown file.
type page struct {
	// path is relative to the root of the repository, with slashes.
	path   string
	source []byte
	tree   ast.Node
	title  string
	// anchors are the fragments by which its headings can be linked to.
	anchors []string
	links   []link
}

// link is a link or a picture in a page.
type link struct {
	node        ast.Node
	destination string
	text        string
	// heading is the heading of the first two levels above the link.
	heading string
}

// markdown reads what GitHub reads: tables, for example, and its anchors of headings.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

// skipped are directories without documents of this repository.
var skipped = []string{".git", ".github", "bin", "dist", "testdata", "node_modules"}

// readPages reads all Markdown files below root.
func readPages(root string) (map[string]*page, error) {
	pages := map[string]*page{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(skipped, entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(file) != ".md":
			return nil
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		p := parsePage(filepath.ToSlash(relative), source)
		if p.title == "" {
			return fmt.Errorf("%s has no heading", p.path)
		}
		pages[p.path] = p
		return nil
	})
	if err == nil && len(pages) == 0 {
		err = fmt.Errorf("%s has no Markdown files", root)
	}
	return pages, err
}

func parsePage(name string, source []byte) *page {
	context := parser.NewContext(parser.WithIDs(&githubIDs{used: map[string]int{}}))
	p := &page{path: name, source: source}
	p.tree = markdown.Parser().Parse(text.NewReader(source), parser.WithContext(context))

	heading := ""
	_ = ast.Walk(p.tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch node := node.(type) {
		case *ast.Heading:
			if id, ok := node.AttributeString("id"); ok {
				p.anchors = append(p.anchors, string(id.([]byte)))
			}
			words := plainText(node, source)
			if p.title == "" {
				p.title = words
			}
			if node.Level <= 2 {
				heading = words
			}
		case *ast.Link:
			p.links = append(p.links, link{node, string(node.Destination), plainText(node, source), heading})
		case *ast.Image:
			p.links = append(p.links, link{node, string(node.Destination), plainText(node, source), heading})
		}
		return ast.WalkContinue, nil
	})
	return p
}

// plainText returns the text below a node without its formatting.
func plainText(node ast.Node, source []byte) string {
	var out bytes.Buffer
	_ = ast.Walk(node, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if leaf, ok := node.(*ast.Text); ok && entering {
			out.Write(leaf.Segment.Value(source))
			if leaf.SoftLineBreak() {
				out.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return out.String()
}

// resolve returns the path of the file that a page links to, and the fragment. ok reports whether
// the link stays in the repository.
func (p *page) resolve(destination string) (file, fragment string, ok bool) {
	if strings.Contains(destination, "://") || strings.HasPrefix(destination, "mailto:") {
		return "", "", false
	}
	file, fragment, _ = strings.Cut(destination, "#")
	if file == "" {
		return p.path, fragment, true
	}
	return path.Join(path.Dir(p.path), file), fragment, true
}

// githubIDs makes the anchors of headings as GitHub does.
type githubIDs struct {
	used map[string]int
}

// Generate returns the anchor of a heading, with a number where an earlier heading has the same.
func (g *githubIDs) Generate(heading []byte, _ ast.NodeKind) []byte {
	var out strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(string(heading))) {
		switch {
		case r == ' ':
			out.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			out.WriteRune(r)
		}
	}
	id := out.String()
	n := g.used[id]
	g.used[id]++
	if n > 0 {
		id += "-" + strconv.Itoa(n)
	}
	return []byte(id)
}

// Put marks an anchor as used.
func (g *githubIDs) Put(id []byte) { g.used[string(id)]++ }
