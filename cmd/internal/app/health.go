package app

import (
	"slices"
	"strings"
	"sync"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

// health collects the checks for /readyz.
type health struct {
	mu     sync.Mutex
	checks map[string]admin.Check
}

// newHealth returns a health that is not ready, because the database and the source have
// not been reached yet.
func newHealth() *health {
	h := &health{}
	h.replaceAll(failedCheck("database", "not yet reached"), failedCheck("source", "not yet reading"))
	return h
}

func passedCheck(name, detail string) admin.Check {
	return admin.Check{Name: name, OK: true, Detail: detail}
}
func failedCheck(name, detail string) admin.Check { return admin.Check{Name: name, Detail: detail} }

func (h *health) ok(name, detail string)   { h.set(passedCheck(name, detail)) }
func (h *health) fail(name, detail string) { h.set(failedCheck(name, detail)) }

// replaceAll replaces all checks.
func (h *health) replaceAll(checks ...admin.Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = map[string]admin.Check{}
	for _, c := range checks {
		h.checks[c.Name] = c
	}
}

// remove deletes a check.
func (h *health) remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.checks, name)
}

func (h *health) set(c admin.Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks[c.Name] = c
}

// Checks returns the checks, sorted by name.
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
