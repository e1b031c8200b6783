package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"testing"
)

// Each module and the standard library become a component on which the binary depends.
func TestModulesBecomeComponents(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8",
		Main:      debug.Module{Path: "example.com/app", Version: "v1.0.0"},
		Deps: []*debug.Module{
			{Path: "example.com/old", Version: "v2.0.0+incompatible", Sum: "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="},
			{Path: "example.com/forked", Version: "v0.1.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v0.1.1"}},
		},
	}
	got := describe(info, "app", sha256.Sum256([]byte("binary")))

	wantComponents := []component{
		{Type: "library", Ref: "pkg:golang/std@1.26.8", Name: "std", Version: "1.26.8", PURL: "pkg:golang/std@1.26.8"},
		{
			Type: "library", Ref: "pkg:golang/example.com/old@v2.0.0%2Bincompatible",
			Name: "example.com/old", Version: "v2.0.0+incompatible",
			PURL:   "pkg:golang/example.com/old@v2.0.0%2Bincompatible",
			Hashes: []hash{{Algorithm: "SHA-256", Content: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"}},
		},
		{
			Type:    "library",
			Ref:     "pkg:golang/example.com/fork@v0.1.1",
			Name:    "example.com/fork",
			Version: "v0.1.1",
			PURL:    "pkg:golang/example.com/fork@v0.1.1",
		},
	}
	if !reflect.DeepEqual(got.Components, wantComponents) {
		t.Errorf("components:\n got %+v\nwant %+v", got.Components, wantComponents)
	}
	main := got.Metadata.Component
	if main.Type != "application" || main.Name != "app" || main.PURL != "pkg:golang/example.com/app@v1.0.0" {
		t.Errorf("the binary is described as %+v", main)
	}
	if n := len(got.Dependencies[0].DependsOn); got.Dependencies[0].Ref != main.Ref || n != len(wantComponents) {
		t.Errorf("%s depends on %d components, want %s on %d", got.Dependencies[0].Ref, n, main.Ref, len(wantComponents))
	}
}

// Two runs with one binary write the same text. The test binary serves as the example.
func TestOutputIsReproducible(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, binary, "v1.2.3"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two runs over one binary differ")
	}
	var got bom
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if main := got.Metadata.Component; main.Name != filepath.Base(binary) || main.Version != "v1.2.3" {
		t.Errorf("described as %s %s", main.Name, main.Version)
	}
}

// A file that is not a Go binary is an error, and nothing is written.
func TestOtherFilesAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte("no binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, file + ".missing"} {
		var out bytes.Buffer
		if err := run(&out, name, ""); err == nil || out.Len() > 0 {
			t.Errorf("run(%s) = %v with %d bytes of output, want an error alone", filepath.Base(name), err, out.Len())
		}
	}
}
