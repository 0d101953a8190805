// Package outboxes holds the outboxes that a store was configured with.
package outboxes

import (
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// Set is some outboxes by their names. It never changes.
type Set struct {
	byName map[string]*store.Outbox
	names  []string
}

// New returns the set of some outboxes. It keeps copies.
func New(list []store.Outbox) *Set {
	s := &Set{byName: map[string]*store.Outbox{}}
	for _, o := range list {
		s.byName[o.Name] = &o
		s.names = append(s.names, o.Name)
	}
	return s
}

// Names returns the names in their configured order. The slice is the set's own.
func (s *Set) Names() []string { return s.names }

// Find returns a configured outbox, or an error that says that there is none.
func (s *Set) Find(name string) (*store.Outbox, error) {
	if o, ok := s.byName[name]; ok {
		return o, nil
	}
	return nil, fmt.Errorf("no outbox %q is configured", name)
}

// Validator is what a call asks of one outbox.
type Validator interface {
	// Validate reports what keeps it from being done to the outbox.
	Validate(*store.Outbox) error
}

// FindValid returns the configured outbox that a request is made of, if it may be.
func (s *Set) FindValid(name string, r Validator) (*store.Outbox, error) {
	o, err := s.Find(name)
	if err != nil {
		return nil, err
	}
	return o, r.Validate(o)
}

// Lookup returns an outbox that Find has found, nil if it has not.
func (s *Set) Lookup(name string) *store.Outbox { return s.byName[name] }
