// Command site makes a website of the Markdown files of this repository, and checks the links in
// them. The website needs no server: its pages link to each other by relative paths.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "the directory of the repository")
	out := flag.String("out", "", "where the website is written; empty: only check the links")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	pages, err := readPages(root)
	if err != nil {
		return err
	}
	if err := errors.Join(checkLinks(root, pages)...); err != nil {
		return err
	}
	navigation, err := readNavigation(pages)
	if err != nil {
		return err
	}
	if out == "" {
		return nil
	}
	return writeSite(out, pages, navigation)
}
