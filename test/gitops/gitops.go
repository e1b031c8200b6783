// Package gitops treats objects as GitOps tools do: by Argo CD's health checks and actions, and by
// kstatus, which Flux and Helm use.
package gitops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	lua "github.com/yuin/gopher-lua"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// Health is what an Argo CD health check returns: a status such as Healthy, and a message.
type Health struct{ Status, Message string }

// scriptTimeout is how long Argo CD lets a script run.
const scriptTimeout = time.Second

// ArgoHealth runs the health check for the object's kind, from a folder in the layout of Argo CD's
// own resource_customizations.
func ArgoHealth(ctx context.Context, customizations string, o *unstructured.Unstructured) (Health, error) {
	script, err := os.ReadFile(filepath.Join(customizations, o.GroupVersionKind().Group, o.GetKind(), "health.lua"))
	if err != nil {
		return Health{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	vm, err := newVM(ctx, o)
	if err != nil {
		return Health{}, err
	}
	defer vm.Close()
	if err := vm.DoString(string(script)); err != nil {
		return Health{}, err
	}
	result, ok := vm.Get(-1).(*lua.LTable)
	if !ok {
		return Health{}, errors.New("the health check returns no table")
	}
	health := Health{result.RawGetString("status").String(), result.RawGetString("message").String()}
	switch health.Status {
	case "Healthy", "Progressing", "Degraded", "Suspended":
		return health, nil
	}
	return health, fmt.Errorf("health %q is unknown to Argo CD", health.Status)
}

// newVM returns a Lua that knows the object as obj. Argo CD offers these libraries alone: strings,
// for instance, have no functions.
func newVM(ctx context.Context, o *unstructured.Unstructured) (*lua.LState, error) {
	vm := lua.NewState(lua.Options{SkipOpenLibs: true})
	vm.SetContext(ctx)
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{
		{lua.LoadLibName, lua.OpenPackage},
		{lua.BaseLibName, lua.OpenBase},
		{lua.TabLibName, lua.OpenTable},
	} {
		vm.Push(vm.NewFunction(library.open))
		vm.Push(lua.LString(library.name))
		if err := vm.PCall(1, 0, nil); err != nil {
			vm.Close()
			return nil, err
		}
	}
	vm.SetGlobal("obj", luaValue(vm, o.Object))
	return vm, nil
}

// luaValue turns a value of decoded JSON into Lua's.
func luaValue(vm *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		table := vm.CreateTable(len(v), 0)
		for _, item := range v {
			table.Append(luaValue(vm, item))
		}
		return table
	case map[string]any:
		table := vm.CreateTable(0, len(v))
		for key, item := range v {
			table.RawSetString(key, luaValue(vm, item))
		}
		return table
	}
	return lua.LNil
}

// States are the states that TestGitOpsTools and TestGitOpsToolsOnPolicies reach and record, by
// kind, each with the status that kstatus is expected to see.
var States = map[string]map[string]string{
	"ExternalBackend": {
		"ready":              "Current",
		"all-healthy":        "Current",
		"some-unhealthy":     "Current",
		"one-name-not-found": "Current",
		"passthrough":        "Current",
		"all-unhealthy":      "InProgress",
		"no-verdict-yet":     "InProgress",
		"draining":           "InProgress",
		"name-not-found":     "InProgress",
		"service-not-found":  "InProgress",
		"refused-by-policy":  "InProgress",
		"invalid-spec":       "Failed",
		"stalled":            "Failed",
	},
	"ExternalBackendPolicy": {
		"refuses-nothing": "Current",
		"refuses":         "Current",
		"would-refuse":    "Current",
		"invalid":         "Failed",
	},
}

// Kstatus is the object's status by the kstatus library: InProgress, Current, Failed or
// Terminating.
func Kstatus(o *unstructured.Unstructured) (string, error) {
	result, err := status.Compute(o)
	if err != nil {
		return "", err
	}
	return result.Status.String(), nil
}

// Edited returns the object after an edit that the operator has not seen.
func Edited(o *unstructured.Unstructured) *unstructured.Unstructured {
	edited := o.DeepCopy()
	edited.SetGeneration(o.GetGeneration() + 1)
	return edited
}

// New returns the object as the API server stores it before the operator has seen it.
func New(o *unstructured.Unstructured) *unstructured.Unstructured {
	created := o.DeepCopy()
	created.SetGeneration(1)
	created.Object["status"] = map[string]any{"observedGeneration": int64(-1)}
	return created
}

// Deleted returns the object while it is being deleted.
func Deleted(o *unstructured.Unstructured) *unstructured.Unstructured {
	deleted := o.DeepCopy()
	now := metav1.Now()
	deleted.SetDeletionTimestamp(&now)
	return deleted
}
