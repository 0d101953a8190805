// Package outboxes holds the configured outboxes of a store, and splits the rows of a
// call by outbox.
package outboxes

import (
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// Set is an immutable set of outboxes by name.
type Set struct {
	byName map[string]*store.Outbox
	names  []string
}

// New returns a set with copies of the outboxes.
func New(list []store.Outbox) *Set {
	s := &Set{byName: map[string]*store.Outbox{}}
	for _, o := range list {
		s.byName[o.Name] = &o
		s.names = append(s.names, o.Name)
	}
	return s
}

// Names returns the names in configured order. The caller must not change the slice.
func (s *Set) Names() []string { return s.names }

// Find returns a configured outbox, or an error if no outbox has the name.
func (s *Set) Find(name string) (*store.Outbox, error) {
	if o, ok := s.byName[name]; ok {
		return o, nil
	}
	return nil, fmt.Errorf("no outbox %q is configured", name)
}

// Validator is a request to one outbox.
type Validator interface {
	// Validate reports whether the request may be made of the outbox.
	Validate(*store.Outbox) error
}

// FindValid returns a configured outbox after it has validated the request.
func (s *Set) FindValid(name string, r Validator) (*store.Outbox, error) {
	o, err := s.Find(name)
	if err != nil {
		return nil, err
	}
	return o, r.Validate(o)
}

// Lookup returns a configured outbox, nil if there is none.
func (s *Set) Lookup(name string) *store.Outbox { return s.byName[name] }
