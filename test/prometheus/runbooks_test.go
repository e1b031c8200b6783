package prometheus

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const runbooks = "https://github.com/external-backend/operator/blob/main/docs/alerts.md"

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEachAlertHasARunbook wants docs/alerts.md to have exactly one section for each alert, in the
// order of the alerts, and each alert to link to its section.
func TestEachAlertHasARunbook(t *testing.T) {
	var alerts []string
	for _, r := range readAlerts(t) {
		alerts = append(alerts, r.Alert)
		if want := runbooks + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, not %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		for _, word := range []string{"summary", "description"} {
			if r.Annotations[word] == "" {
				t.Errorf("%s has no %s", r.Alert, word)
			}
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has severity %q", r.Alert, s)
		}
	}
	var sections []string
	section := regexp.MustCompile(`(?m)^## (\w+)$`)
	for _, match := range section.FindAllStringSubmatch(readText(t, root+"/docs/alerts.md"), -1) {
		sections = append(sections, match[1])
	}
	if !slices.Equal(alerts, sections) {
		t.Errorf("the alerts are %v, the sections of docs/alerts.md are %v", alerts, sections)
	}
}

// TestOperationsListsTheAlerts compares the table of docs/operations.md with the alerts.
func TestOperationsListsTheAlerts(t *testing.T) {
	var want, is []string
	for _, r := range readAlerts(t) {
		want = append(want, fmt.Sprintf("[%s](alerts.md#%s) %s", r.Alert, strings.ToLower(r.Alert), cmp.Or(r.For, "-")))
	}
	row := regexp.MustCompile(`(?m)^\| (\[ExternalBackend\w+\]\([^)]*\)) \|[^|]*\| *(\w*) *\|$`)
	for _, match := range row.FindAllStringSubmatch(readText(t, root+"/docs/operations.md"), -1) {
		is = append(is, match[1]+" "+cmp.Or(match[2], "-"))
	}
	if !slices.Equal(want, is) {
		t.Errorf("docs/operations.md lists\n%s\nnot\n%s", strings.Join(is, "\n"), strings.Join(want, "\n"))
	}
}
