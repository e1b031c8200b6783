// Package integration tests the installed manager with a real API server and
// kube-controller-manager: what happens to Services, slices and status when users, other clients
// and failures change something. Package dataplane tests traffic.
package integration

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

func TestMain(m *testing.M) {
	// The tests mostly wait. -parallel overrides this value, because flags are parsed later.
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	harness.Main(m, devcluster.Options{WithoutProxy: true, WithoutDNS: true})
}

// shared is the manager of all parallel tests, and the number of tests that use it. Tests with
// their own manager run one by one. The testing package runs them before the parallel ones.
var shared struct {
	sync.Mutex
	users   int
	manager *lab.Manager
	rights  rights
}

// parallel starts a parallel test, which shares a manager with others.
func parallel(t *testing.T) *harness.Test {
	t.Helper()
	t.Parallel()
	h := harness.New(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.manager == nil {
		shared.rights = watchRights(h)
		var err error
		if shared.manager, err = h.Lab.StartManager(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	shared.users++
	t.Cleanup(func() { release(h) })
	return h
}

// release ends the use of the shared manager. The last test stops it.
func release(h *harness.Test) {
	shared.Lock()
	defer shared.Unlock()
	if h.T.Failed() {
		h.T.Logf("the manager's log of the test's namespace:\n%s", managerLog(shared.manager, h.Namespace))
	}
	if shared.users--; shared.users > 0 {
		return
	}
	if err := shared.manager.Stop(); err != nil {
		h.T.Errorf("%v; it said:\n%s", err, shared.manager.Tail())
	}
	shared.manager = nil
	shared.rights.wantNoDenial(h)
}

// managerLog returns the last lines of the manager's log about a namespace.
func managerLog(m *lab.Manager, namespace string) string {
	text, err := os.ReadFile(m.Log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, namespace) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-40):], "")
}

// rights watches for requests of the manager that RBAC denies, from watchRights on.
type rights struct{ offset int64 }

func watchRights(h *harness.Test) rights {
	h.T.Helper()
	info, err := os.Stat(h.AuditLog)
	if err != nil {
		h.T.Fatal(err)
	}
	return rights{info.Size()}
}

// wantNoDenial fails the test for each denied request of the manager. Requests for Secrets and
// ConfigMaps do not count: administrators grant them by namespace.
func (r rights) wantNoDenial(h *harness.Test) {
	h.T.Helper()
	text, err := os.ReadFile(h.AuditLog)
	if err != nil {
		h.T.Fatal(err)
	}
	asked := 0
	for line := range strings.Lines(string(text[min(r.offset, int64(len(text))):])) {
		if !strings.Contains(line, `"system:serviceaccount:`+lab.SystemNamespace+`:`) {
			continue
		}
		var entry struct {
			Verb, RequestURI string
			ObjectRef        struct{ Resource string }
			Annotations      map[string]string
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			break // the API server is still writing this line
		}
		asked++
		if entry.Annotations["authorization.k8s.io/decision"] == "forbid" &&
			!slices.Contains([]string{"secrets", "configmaps"}, entry.ObjectRef.Resource) {
			h.T.Errorf("the manager has no right to %s %s", entry.Verb, entry.RequestURI)
		}
	}
	if asked == 0 {
		h.T.Error("the audit log has no request of the manager")
	}
}

// fetchJSON sends a request, whose answer must be JSON with status 200.
func fetchJSON(h *harness.Test, client *http.Client, req *http.Request, into any) {
	h.T.Helper()
	resp, err := client.Do(req)
	if err != nil {
		h.T.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		h.T.Fatalf("%s: %s", req.URL, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		h.T.Fatal(err)
	}
}
