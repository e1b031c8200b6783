package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Nobody else on the machine can read the URL, with its token, that the browser opens.
func TestURLForBrowserIsPrivate(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const url = "http://127.0.0.1:8090/token/"
	file, remove, err := privatePage(url)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), url) != 2 {
		t.Errorf("%v: %s", err, text)
	}
	for _, path := range []string{file, filepath.Dir(file)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	remove()
	if _, err := os.Stat(filepath.Dir(file)); !os.IsNotExist(err) {
		t.Errorf("the file stays: %v", err)
	}
}
