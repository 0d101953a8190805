package app

import (
	"slices"
	"strings"
	"sync"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

// health is what the relay knows of its parts, for /readyz.
type health struct {
	mu     sync.Mutex
	checks map[string]admin.Check
}

// newHealth begins not ready: the database and the source have yet to be
// reached.
func newHealth() *health {
	h := &health{}
	h.only(wrong("database", "not yet reached"), wrong("source", "not yet reading"))
	return h
}

func right(name, detail string) admin.Check { return admin.Check{Name: name, OK: true, Detail: detail} }
func wrong(name, detail string) admin.Check { return admin.Check{Name: name, Detail: detail} }

func (h *health) ok(name, detail string)   { h.set(right(name, detail)) }
func (h *health) fail(name, detail string) { h.set(wrong(name, detail)) }

// only forgets all checks but these.
func (h *health) only(checks ...admin.Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = map[string]admin.Check{}
	for _, c := range checks {
		h.checks[c.Name] = c
	}
}

// forget takes a check away.
func (h *health) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.checks, name)
}

func (h *health) set(c admin.Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks[c.Name] = c
}

// Checks returns the checks by name.
func (h *health) Checks() []admin.Check {
	h.mu.Lock()
	defer h.mu.Unlock()
	checks := make([]admin.Check, 0, len(h.checks))
	for _, c := range h.checks {
		checks = append(checks, c)
	}
	slices.SortFunc(checks, func(a, b admin.Check) int { return strings.Compare(a.Name, b.Name) })
	return checks
}
