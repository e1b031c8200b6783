// Command sbom writes the software bill of materials of a Go binary to its standard output, as
// CycloneDX 1.6 JSON.
//
// It lists the modules that the linker recorded in the binary, so it contains exactly the linked
// modules. The same binary always gives the same text.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"strings"
)

func main() {
	version := flag.String("version", "", "version of the binary, where it was built from a working tree")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: sbom [-version v1.2.3] BINARY")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), *version); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// run writes the bill of materials of a file. If version is empty, it uses that in the binary.
func run(out io.Writer, file, version string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	if version != "" {
		info.Main.Version = version
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(describe(info, path.Base(file), sha256.Sum256(content)))
}

// These types are the part of CycloneDX 1.6 that is needed: https://cyclonedx.org/docs/1.6/json/.
type (
	bom struct {
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type    string `json:"type"`
		Ref     string `json:"bom-ref"`
		Name    string `json:"name"`
		Version string `json:"version"`
		PURL    string `json:"purl"`
		Hashes  []hash `json:"hashes,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

// describe lists the binary's modules and Go's standard library. A binary does not record which
// module needs which, so it is listed as depending on all of them.
func describe(info *debug.BuildInfo, name string, sum [sha256.Size]byte) bom {
	main := library(&info.Main)
	main.Type = "application"
	main.Name = name
	main.Hashes = []hash{{Algorithm: "SHA-256", Content: hex.EncodeToString(sum[:])}}

	components := []component{library(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		components = append(components, library(module))
	}
	dependencies := []dependency{{Ref: main.Ref}}
	for _, c := range components {
		dependencies[0].DependsOn = append(dependencies[0].DependsOn, c.Ref)
		dependencies = append(dependencies, dependency{Ref: c.Ref})
	}
	return bom{
		Format:       "CycloneDX",
		SpecVersion:  "1.6",
		Version:      1,
		Metadata:     metadata{Component: main},
		Components:   components,
		Dependencies: dependencies,
	}
}

// library describes one module. Its hash is that of go.sum, which covers the module's files
// (https://go.dev/ref/mod#go-sum-files), in hexadecimal as CycloneDX requires.
func library(module *debug.Module) component {
	// In a package URL of type golang, only characters such as '+' in a version need an escape.
	purl := "pkg:golang/" + module.Path + "@" + url.QueryEscape(module.Version)
	c := component{Type: "library", Ref: purl, Name: module.Path, Version: module.Version, PURL: purl}
	if sum, found := strings.CutPrefix(module.Sum, "h1:"); found {
		if raw, err := base64.StdEncoding.DecodeString(sum); err == nil {
			c.Hashes = []hash{{Algorithm: "SHA-256", Content: hex.EncodeToString(raw)}}
		}
	}
	return c
}
