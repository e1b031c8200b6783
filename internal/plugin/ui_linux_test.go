package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The command that opens the browser has ended with the page, and so has the file with the URL.
func TestBrowserCommandEndsWithPage(t *testing.T) {
	dir := t.TempDir()
	told := filepath.Join(dir, "told")
	if err := syscall.Mkfifo(told, 0o600); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho $$ $1 >%s\nexec /bin/sleep 1000\n", told)
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("TMPDIR", dir)
	end := openBrowser(t.Context(), "http://127.0.0.1:8090/token/")
	text, err := os.ReadFile(told) // waits for the script
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	var file string
	if _, err := fmt.Sscan(string(text), &pid, &file); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}

	end()
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the command is still there: %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}
