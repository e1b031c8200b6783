package read

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

// Source is what the page of package ui shows, read with a client.
type Source struct {
	client    client.WithWatch
	namespace string // "" for all
	changed   func() // tells the page that Rows has changed
	backends  *Kept

	mu        sync.Mutex
	followers map[*follower]bool
}

// NewSource returns the ExternalBackends of a namespace; "" for all. It is empty until Start.
func NewSource(c client.WithWatch, namespace string) *Source {
	return &Source{client: c, namespace: namespace, followers: map[*follower]bool{}}
}

// Start keeps the ExternalBackends current until ctx or stop ends that. changed is called when Rows
// has changed. Call it before anything else.
func (s *Source) Start(ctx context.Context, changed func()) (stop func()) {
	s.changed = changed
	s.backends = Keep(ctx, s.client, &v1alpha1.ExternalBackendList{}, s.note, client.InNamespace(s.namespace))
	return s.backends.Stop
}

// note tells the page, and those who follow the ExternalBackend or one behind the same Service.
func (s *Source) note(before, after client.Object) {
	s.changed()
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		f.note(before, after)
	}
}

// Rows returns the ExternalBackends, and why they may be out of date.
func (s *Source) Rows() ([]view.Row, string) {
	list := s.backends.Objects()
	rows := make([]view.Row, len(list))
	for i := range list {
		rows[i] = view.BuildRow(list[i].(*v1alpha1.ExternalBackend))
	}
	notice := ""
	if err := s.backends.Doubt(); err != nil {
		notice = "What you see may be out of date: " + err.Error()
	}
	return rows, notice
}

// Read asks the API server for an ExternalBackend and what belongs to it.
func (s *Source) Read(ctx context.Context, namespace, name string) (*view.Objects, error) {
	objects, err := Backend(ctx, s.client, namespace, name)
	if err != nil {
		return nil, DescribeError(err, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return objects, nil
}

// Follow keeps an ExternalBackend and what belongs to it current. The caller calls stop in the end.
// changed is called when some of it has changed, and read returns what is known.
func (s *Source) Follow(
	ctx context.Context, namespace, name string, changed func(),
) (read func(context.Context) (*view.Objects, error), stop func()) {
	f := &follower{
		source: s, ctx: ctx, key: types.NamespacedName{Namespace: namespace, Name: name}, changed: changed,
		kept: map[string]*Kept{},
	}
	s.mu.Lock()
	s.followers[f] = true
	s.mu.Unlock()
	return f.read, func() {
		s.mu.Lock()
		delete(s.followers, f)
		s.mu.Unlock()
		f.stop(func(string) bool { return true })
	}
}
