package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// The page of an editor on call follows what the operator does, and drains a target once that is
// confirmed.
func TestPageFollowsOperatorAndMovesTraffic(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	onCall := newPluginUser(h, "on-call", "edit", "external-backend-externalbackend-editor-role",
		"external-backend-override-editor-role")
	running := onCall.start("ui", "--no-browser")
	var url string
	h.Eventually("the URL of the page", func() error {
		first, _, whole := strings.Cut(running.String(), "\n")
		if url = first; !whole {
			return errors.New("nothing is printed yet")
		}
		return nil
	})
	events := followPage(t, url+"events?open="+h.Namespace+"/web")
	h.Eventually("the page to show web", func() error {
		return events.say(`"name":"web","state":"Healthy"`, `"head":`, `"verdict":`, h.Namespace+"/web")
	})

	target := h.Backend("web").Spec.Targets[0].Name
	move := map[string]any{
		"namespace": h.Namespace, "name": "web", "action": "drain", "target": target, "seconds": 3600,
	}
	shown := postMove(t, url, move)
	if !strings.Contains(shown["manifest"].(string), "adminState: Draining") || shown["done"].(bool) {
		t.Fatal(shown)
	}
	move["digest"], move["at"] = shown["digest"], shown["at"]
	if done := postMove(t, url, move); !done["done"].(bool) {
		t.Fatal(done)
	}
	h.Eventually("the page to show the override", func() error { return events.say(`"override":"web-`) })
	if err := running.interrupt(); err != nil {
		t.Errorf("%v:\n%s", err, running.String())
	}
}

// pageEvents is what a page was told.
type pageEvents struct {
	mu   sync.Mutex
	text strings.Builder
}

// followPage reads a stream until the test ends.
func followPage(t *testing.T, url string) *pageEvents {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	out := &pageEvents{}
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewReader(answer.Body)
		for {
			line, err := lines.ReadString('\n')
			out.mu.Lock()
			out.text.WriteString(line)
			out.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = answer.Body.Close()
		reading.Wait()
	})
	return out
}

// say returns an error unless the page was told all of this.
func (e *pageEvents) say(all ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, text := range all {
		if !strings.Contains(e.text.String(), text) {
			return fmt.Errorf("no %s in:\n%s", text, e.text.String())
		}
	}
	return nil
}

// postMove asks for a move as the page does, and returns the answer.
func postMove(t *testing.T, url string, move map[string]any) map[string]any {
	t.Helper()
	body, err := json.Marshal(move)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"move", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", answer.Status, text, err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
