package sluicebox

import (
	"slices"
	"strings"
	"sync"
)

// Check is one condition of readiness.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Warning marks a check that an operator should look at, also if it is OK.
	Warning bool   `json:"warning,omitempty"`
	Detail  string `json:"detail"` // the reason, without secrets; may be empty if OK
}

// health collects the recorded checks.
type health struct {
	mu     sync.Mutex
	checks map[string]Check
}

// newHealth returns a health that is not ready, because the database and the source have
// not been reached yet.
func newHealth() *health {
	h := &health{}
	h.replaceAll(failedCheck("database", "not yet reached"), failedCheck("source", "not yet reading"))
	return h
}

func passedCheck(name, detail string) Check {
	return Check{Name: name, OK: true, Detail: detail}
}
func failedCheck(name, detail string) Check { return Check{Name: name, Detail: detail} }

func (h *health) ok(name, detail string)   { h.set(passedCheck(name, detail)) }
func (h *health) fail(name, detail string) { h.set(failedCheck(name, detail)) }

// replaceAll replaces all checks.
func (h *health) replaceAll(checks ...Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = map[string]Check{}
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

func (h *health) set(c Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks[c.Name] = c
}

// Checks returns the checks, sorted by name.
func (h *health) Checks() []Check {
	h.mu.Lock()
	defer h.mu.Unlock()
	checks := make([]Check, 0, len(h.checks))
	for _, c := range h.checks {
		checks = append(checks, c)
	}
	slices.SortFunc(checks, func(a, b Check) int { return strings.Compare(a.Name, b.Name) })
	return checks
}

// Working reports whether the relay reads as leader or stands by. Checks of a sink do not
// count, because a receiver may be down or a row may be unspillable, and a service manager
// would end a relay that delivers everything else.
func (r *Relay) Working() bool {
	for _, c := range r.health.Checks() {
		if !c.OK && !strings.HasPrefix(c.Name, "sink ") && !strings.HasPrefix(c.Name, spillCheckPrefix) {
			return false
		}
	}
	return true
}
