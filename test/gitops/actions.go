package gitops

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Impact is what an action does to one object.
type Impact struct {
	Operation string // create or patch
	Object    *unstructured.Unstructured
}

// ArgoActions runs the discovery of the actions for the object's kind, and returns what it returns.
func ArgoActions(ctx context.Context, customizations string, o *unstructured.Unstructured) (map[string]any, error) {
	value, err := runScript(ctx, actionsOf(customizations, o, "discovery.lua"), o, nil, time.Time{})
	if err != nil {
		return nil, err
	}
	actions, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the discovery returns %T, not a table", value)
	}
	return actions, nil
}

// ArgoAction runs an action on the object at a time, which is also that of the clock of the script.
// Its zone is the local one. A table with numbers for keys lists what is created and patched; any
// other is the patched object.
func ArgoAction(
	ctx context.Context, customizations, action string, o *unstructured.Unstructured, params map[string]string,
	now time.Time,
) ([]Impact, error) {
	value, err := runScript(ctx, actionsOf(customizations, o, action, "action.lua"), o, params, now)
	if err != nil {
		return nil, err
	}
	if patched, ok := value.(map[string]any); ok {
		return []Impact{{"patch", &unstructured.Unstructured{Object: patched}}}, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("action %s returns %T, not a table", action, value)
	}
	var out []Impact
	for _, item := range list {
		impact, _ := item.(map[string]any)
		object, _ := impact["resource"].(map[string]any)
		operation, _ := impact["operation"].(string)
		if object == nil || operation != "create" && operation != "patch" {
			return nil, fmt.Errorf("action %s returns %v, which Argo CD refuses", action, item)
		}
		out = append(out, Impact{operation, &unstructured.Unstructured{Object: object}})
	}
	return out, nil
}

func actionsOf(customizations string, o *unstructured.Unstructured, file ...string) string {
	folder := filepath.Join(customizations, o.GroupVersionKind().Group, o.GetKind(), "actions")
	return filepath.Join(folder, filepath.Join(file...))
}

// runScript runs a script with the libraries that Argo CD gives to actions, and returns what the
// script returns as decoded JSON.
func runScript(
	ctx context.Context, path string, o *unstructured.Unstructured, params map[string]string, now time.Time,
) (any, error) {
	script, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	vm, err := newVM(ctx, o)
	if err != nil {
		return nil, err
	}
	defer vm.Close()

	vm.PreloadModule(lua.OsLibName, func(l *lua.LState) int {
		l.Push(l.SetFuncs(l.NewTable(), clockOf(now)))
		return 1
	})
	table := vm.NewTable()
	for name, value := range params {
		table.RawSetString(name, lua.LString(value))
	}
	vm.SetGlobal("actionParams", table)

	if err := vm.DoString(string(script)); err != nil {
		if e, ok := err.(*lua.ApiError); ok {
			return nil, fmt.Errorf("%s", e.Object)
		}
		return nil, err
	}
	return goValue(vm.Get(-1)), nil
}

// goValue turns a value of Lua into that of decoded JSON. As in Argo CD, a table with a first
// element is a list, and an empty one too.
func goValue(value lua.LValue) any {
	switch v := value.(type) {
	case lua.LBool:
		return bool(v)
	case lua.LString:
		return string(v)
	case lua.LNumber:
		if v == lua.LNumber(int64(v)) {
			return int64(v)
		}
		return float64(v)
	case *lua.LTable:
		if v.Len() > 0 {
			list := make([]any, 0, v.Len())
			v.ForEach(func(_, item lua.LValue) { list = append(list, goValue(item)) })
			return list
		}
		object := map[string]any{}
		v.ForEach(func(key, item lua.LValue) { object[key.String()] = goValue(item) })
		if len(object) == 0 {
			return []any{}
		}
		return object
	}
	return nil
}

// clockOf returns the functions of Lua's os that Argo CD offers. As there, a date is in UTC only if
// its format begins with "!" and no time is given.
func clockOf(now time.Time) map[string]lua.LGFunction {
	fields := []string{"year", "month", "day", "hour", "min", "sec"}
	return map[string]lua.LGFunction{
		"time": func(l *lua.LState) int {
			at := now
			if l.GetTop() > 0 {
				var v [6]int
				for i, name := range fields {
					n, _ := l.CheckTable(1).RawGetString(name).(lua.LNumber)
					v[i] = int(n)
				}
				at = time.Date(v[0], time.Month(v[1]), v[2], v[3], v[4], v[5], 0, now.Location())
			}
			l.Push(lua.LNumber(at.Unix()))
			return 1
		},
		"date": func(l *lua.LState) int {
			format, utc := strings.CutPrefix(l.CheckString(1), "!")
			at := now
			if utc {
				at = now.UTC()
			}
			if l.GetTop() > 1 {
				at = time.Unix(l.CheckInt64(2), 0).In(now.Location())
			}
			if format != "*t" {
				l.Push(lua.LString(at.Format(strings.NewReplacer("%Y", "2006", "%y", "06", "%m", "01", "%d", "02",
					"%H", "15", "%M", "04", "%S", "05").Replace(format))))
				return 1
			}
			table := l.NewTable()
			for i, n := range []int{at.Year(), int(at.Month()), at.Day(), at.Hour(), at.Minute(), at.Second()} {
				table.RawSetString(fields[i], lua.LNumber(n))
			}
			l.Push(table)
			return 1
		},
	}
}
