package main

import discoveryv1 "k8s.io/api/discovery/v1"

// store stands for the API server: it has slices and a journal of writes.
type store struct {
	list    []*discoveryv1.EndpointSlice
	at      map[string]int // position in list
	created int
	journal []write
}

// write is one write: the slice before it, nil for a creation, and after it, nil for a deletion.
type write struct{ before, after *discoveryv1.EndpointSlice }

func newStore() *store { return &store{at: map[string]int{}} }

func (s *store) create(slice *discoveryv1.EndpointSlice) {
	if _, ok := s.at[slice.Name]; ok {
		panic("created twice: " + slice.Name)
	}
	s.created++
	s.at[slice.Name] = len(s.list)
	s.list = append(s.list, slice)
	s.journal = append(s.journal, write{after: slice})
}

func (s *store) update(slice *discoveryv1.EndpointSlice) {
	at := s.at[slice.Name]
	s.journal = append(s.journal, write{s.list[at], slice})
	s.list[at] = slice
}

func (s *store) delete(name string) {
	at, last := s.at[name], len(s.list)-1
	s.journal = append(s.journal, write{before: s.list[at]})
	s.list[at] = s.list[last]
	s.at[s.list[at].Name] = at
	s.list = s.list[:last]
	delete(s.at, name)
}
