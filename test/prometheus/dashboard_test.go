package prometheus

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"testing"
)

const dashboardFile = root + "/config/grafana/externalbackend.json"

// dashboard is what the tests read of a Grafana dashboard.
type dashboard struct {
	ID         any    // Grafana gives it
	Title, UID string // the UID is the dashboard's address, so it is fixed
	Templating struct {
		List []struct {
			Name, Type string
			Query      any // a text, or an object with the text
		}
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Panels                   []panel // of a row that is collapsed
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ Expr, LegendFormat, RefID string }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		d.Panels = append(d.Panels, p.Panels...)
	}
	return d
}

var (
	labelValues = regexp.MustCompile(`^label_values\((.*), *(\w+)\)$`)
	legendLabel = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)
	variable    = regexp.MustCompile(`\$(\w+)`)
)

// fillIn replaces a dashboard's variables as Grafana does where all values are chosen.
func fillIn(expr string) string {
	return variable.ReplaceAllStringFunc(expr, func(name string) string {
		if name == "$__rate_interval" {
			return "5m"
		}
		return ".*"
	})
}

// dashboardSelectors returns what the panels and the variables ask for.
func dashboardSelectors(t *testing.T) []selector {
	t.Helper()
	d := readDashboard(t)
	var all []selector
	add := func(where, expr string, shown []string) {
		found, err := selectorsOf(fillIn(expr), shown)
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		all = append(all, found...)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			var shown []string
			for _, match := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				shown = append(shown, match[1])
			}
			add("panel "+p.Title, target.Expr, shown)
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		query, _ := v.Query.(map[string]any)
		parts := labelValues.FindStringSubmatch(fmt.Sprint(query["query"]))
		if parts == nil {
			t.Errorf("variable %s: the query %v is not label_values(...)", v.Name, v.Query)
			continue
		}
		add("variable "+v.Name, parts[1], []string{parts[2]})
	}
	return all
}

// TestDashboardIsComplete wants every panel to say what it shows and in which unit, and panels not
// to overlap.
func TestDashboardIsComplete(t *testing.T) {
	d := readDashboard(t)
	if d.Title == "" || d.UID == "" || d.ID != nil || len(d.Panels) < 10 {
		t.Errorf("title %q, uid %q, id %v, %d panels", d.Title, d.UID, d.ID, len(d.Panels))
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	ids, cells := map[int]string{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] != "" {
			t.Errorf("panel %d: the title is %q; the id is also that of panel %q", p.ID, p.Title, ids[p.ID])
		}
		ids[p.ID] = p.Title
		if p.Type != "row" {
			wantPanel(t, p, variables)
		}
		pos := p.GridPos
		if pos.W < 1 || pos.H < 1 || pos.X < 0 || pos.X+pos.W > 24 {
			t.Errorf("panel %q is outside of Grafana's 24 columns: %+v", p.Title, pos)
		}
		for x := pos.X; x < pos.X+pos.W; x++ {
			for y := pos.Y; y < pos.Y+pos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" {
					t.Fatalf("panel %q overlaps panel %q", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
	}
}

// wantPanel wants a panel to have a description, a unit, and queries that use only the dashboard's
// variables.
func wantPanel(t *testing.T, p panel, variables map[string]bool) {
	t.Helper()
	if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
		t.Errorf("panel %q has description %q, unit %q and %d queries",
			p.Title, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets))
	}
	references := map[string]bool{}
	for _, target := range p.Targets {
		if target.Expr == "" || target.RefID == "" || references[target.RefID] {
			t.Errorf("panel %q: query %q is %q; each query needs an id of its own", p.Title, target.RefID, target.Expr)
		}
		references[target.RefID] = true
		for _, match := range variable.FindAllStringSubmatch(target.Expr, -1) {
			if !variables[match[1]] {
				t.Errorf("panel %q uses the variable %s, which the dashboard lacks", p.Title, match[1])
			}
		}
	}
}

// TestDashboardNamesNoDataSource wants every data source of the dashboard to be the one that its
// user chooses.
func TestDashboardNamesNoDataSource(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var whole any
	if err := json.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	sources := dataSources(whole)
	for _, uid := range sources {
		if uid != "${datasource}" {
			t.Errorf("a data source is %v, not ${datasource}", uid)
		}
	}
	if panels := len(readDashboard(t).Panels); len(sources) < panels {
		t.Errorf("%d data sources were found in %d panels", len(sources), panels)
	}
}

// dataSources returns the uid of each data source in decoded JSON.
func dataSources(value any) (uids []any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			uids = append(uids, dataSources(item)...)
		}
	case map[string]any:
		for key, item := range v {
			switch source := item.(type) {
			case map[string]any:
				if key == "datasource" {
					uids = append(uids, source["uid"])
					continue
				}
			case string:
				if key == "datasource" {
					uids = append(uids, source)
					continue
				}
			}
			uids = append(uids, dataSources(item)...)
		}
	}
	return uids
}
