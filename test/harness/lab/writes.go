package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

// Write is a request by which the manager wants to change an object. The API server may have
// refused it, or found nothing to change.
type Write struct {
	Verb, Resource, Namespace, Name string // Resource includes the subresource, as in services/status
	Code                            int    // HTTP status of the answer
}

// Writes counts the manager's writes since CountWrites.
type Writes struct {
	path   string
	offset int64
}

// CountWrites starts to count. The cluster must have been started with the option Audit.
func (l *Lab) CountWrites() (*Writes, error) {
	info, err := os.Stat(l.AuditLog)
	if err != nil {
		return nil, fmt.Errorf("lab: no audit log: %w", err)
	}
	return &Writes{path: l.AuditLog, offset: info.Size()}, nil
}

// Since returns all writes since CountWrites, without those of events and leases, in the order of
// their answers.
func (w *Writes) Since() ([]Write, error) {
	file, err := os.Open(w.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(w.offset, io.SeekStart); err != nil {
		return nil, err
	}
	user := fmt.Sprintf("system:serviceaccount:%s:%s", SystemNamespace, serviceAccount)
	var writes []Write
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct {
			Verb           string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			break // the API server is still writing this line
		}
		o := entry.ObjectRef
		if entry.User.Username != user || slices.Contains([]string{"get", "list", "watch"}, entry.Verb) ||
			o.Resource == "events" || o.Resource == "leases" {
			continue
		}
		if o.Subresource != "" {
			o.Resource += "/" + o.Subresource
		}
		writes = append(writes, Write{
			Verb: entry.Verb, Resource: o.Resource, Namespace: o.Namespace, Name: o.Name, Code: entry.ResponseStatus.Code,
		})
	}
	return writes, lines.Err()
}
