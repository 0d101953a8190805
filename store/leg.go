package store

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"regexp"
	"slices"
)

// Route sends rows of an outbox to one destination. An outbox with routes has a leg for each: a
// virtual outbox of its own lanes, holds, spilled rows and FAILED rows.
type Route struct {
	// Name is unique within the outbox: ^[a-z0-9][a-z0-9_-]{0,39}$
	Name string
	// Optional: the row's status does not depend on this leg.
	Optional bool
}

// MaxRoutes is the maximum number of routes of an outbox, the bits of a LegSet.
const MaxRoutes = 32

// routePattern has no slash, so that a leg's name names one outbox and one route.
var routePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

// ValidateRouteName reports whether name is a valid name of a route.
func ValidateRouteName(name string) error {
	if routePattern.MatchString(name) {
		return nil
	}
	return fmt.Errorf("route %q: use 1 to 40 of a-z, 0-9, _ and -, not beginning with _ or -", name)
}

// LegName returns the name of the leg of an outbox, for example orders/hooks. The leg of the route
// "" is the outbox itself.
func LegName(outbox, route string) string {
	if route == "" {
		return outbox
	}
	return outbox + "/" + route
}

// Legs returns the legs of the outbox as outboxes, in the order of Routes; nil without routes. No
// table tells how far a leg is, so its layout is LogOnly: its spilled and FAILED rows keep their
// content, and the relay's records say which rows are FAILED.
func (o *Outbox) Legs() []Outbox {
	var legs []Outbox
	for _, r := range o.Routes {
		leg := *o
		leg.Name, leg.Routes, leg.AnyRequired = LegName(o.Name, r.Name), nil, false
		leg.Retention, leg.Archive, leg.ArchiveSchema, leg.FailedArchive, leg.FailedArchiveSchema = 0, "", "", "", ""
		leg.Layout.State, leg.Layout.DeleteDelivered, leg.Layout.Record = StateNone, false, nil
		legs = append(legs, leg)
	}
	return legs
}

// SpilledAs returns the names under which rows of the outbox may be spilled: its own, and those of
// its legs.
func (o *Outbox) SpilledAs() []string {
	names := []string{o.Name}
	for _, r := range o.Routes {
		names = append(names, LegName(o.Name, r.Name))
	}
	return names
}

// WithLegs returns outboxes with each outbox that has routes followed by its legs.
func WithLegs(outboxes []Outbox) []Outbox {
	var all []Outbox
	for i := range outboxes {
		all = append(append(all, outboxes[i]), outboxes[i].Legs()...)
	}
	return all
}

// RouteSet returns the routes of the outbox with the given names. It ignores names that the
// outbox has no route for.
func (o *Outbox) RouteSet(names []string) (s LegSet) {
	for _, name := range names {
		if i := slices.IndexFunc(o.Routes, func(r Route) bool { return r.Name == name }); i >= 0 {
			s = s.With(i)
		}
	}
	return s
}

// KeepsAttributes reports whether every reader of a row reads its attributes, also of a row whose
// payload it leaves out, because they decide which routes the row takes.
func (o *Outbox) KeepsAttributes() bool { return len(o.Routes) > 0 }

func (o *Outbox) validateRoutes() error {
	var errs []error
	if len(o.Routes) > MaxRoutes {
		errs = append(errs, fmt.Errorf("%d routes; use at most %d", len(o.Routes), MaxRoutes))
	}
	seen := map[string]bool{}
	for _, r := range o.Routes {
		errs = append(errs, ValidateRouteName(r.Name))
		if seen[r.Name] {
			errs = append(errs, fmt.Errorf("route %q is configured twice", r.Name))
		}
		seen[r.Name] = true
	}
	if o.AnyRequired && len(o.Routes) == 0 {
		errs = append(errs, errors.New("any-required needs routes"))
	}
	return errors.Join(errs...)
}

// LegSet is a set of legs of one outbox: bit i is Routes[i]. It is never stored, because a change
// of the configuration changes its meaning.
type LegSet uint32

// AllLegs returns the set of the first n legs.
func AllLegs(n int) LegSet { return LegSet(1<<n - 1) }

// Has reports whether the set has leg i.
func (s LegSet) Has(i int) bool { return s&(1<<i) != 0 }

// With returns the set with leg i.
func (s LegSet) With(i int) LegSet { return s | 1<<i }

// Without returns the set without leg i.
func (s LegSet) Without(i int) LegSet { return s &^ (1 << i) }

// Len returns the number of legs.
func (s LegSet) Len() int { return bits.OnesCount32(uint32(s)) }

// All iterates over the legs in the order of Routes.
func (s LegSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := s; rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros32(uint32(rest))) {
				return
			}
		}
	}
}

// LegRule tells which legs decide the status of a row.
type LegRule struct {
	Required    LegSet
	AnyRequired bool // one required leg is enough
}

// LegRule returns the rule of the outbox.
func (o *Outbox) LegRule() LegRule {
	rule := LegRule{AnyRequired: o.AnyRequired}
	for i := range o.Routes {
		if !o.Routes[i].Optional {
			rule.Required = rule.Required.With(i)
		}
	}
	return rule
}

// Needed returns the legs that decide the status of a row. anyOf: one delivery is enough. The first
// leg that delivers a row without a required leg completes it. A leg whose FAILED row was discarded
// is to be left out of matched.
func (r LegRule) Needed(matched LegSet) (legs LegSet, anyOf bool) {
	if required := matched & r.Required; required != 0 {
		return required, r.AnyRequired
	}
	return matched, true
}

// Verdict returns the status that the ends of legs give a row; 0 if it is open, or has no leg.
func (r LegRule) Verdict(matched, done, failed LegSet) Status {
	legs, anyOf := r.Needed(matched)
	switch {
	case legs == 0:
		return 0
	case anyOf && legs&done != 0:
		return Completed
	case legs&^(done|failed) != 0:
		return 0
	case legs&failed != 0:
		return Failed
	}
	return Completed
}

// LegMark is how far a leg is: every row at or below it is settled for the leg, or spilled.
type LegMark struct {
	Position Position
	Seq      Seq
}

// LegRow is the record of a row whose legs are not at one, which the marks of the legs cannot
// tell: a leg has spilled the row, is FAILED, or has a counted retry; or no mark covers the row.
// The names are those of routes, in the order of the configuration.
type LegRow struct {
	Ref              // of the row, not of a leg
	Matched []string // the legs of the row
	Done    []string // they delivered the row, or need not
	Failed  []string // each has a FAILED record
	Spilled []string // each has a copy among the spilled rows
	// Again are the legs that are to deliver the row, also if their marks have passed it or it is settled:
	// it was set back, or it has its outcome without them. Those that are FAILED are being requeued, and the
	// row may be set back for them already.
	Again []string
	// Discarded are the legs whose FAILED record was discarded. They have ended, and the status of
	// the row does not depend on them any more.
	Discarded []string
	// Retries are the counted failures of legs, by route.
	Retries map[string]LegRetry
}

// LegRetry is the counted failures of a leg of a row.
type LegRetry struct {
	Count int
	Error string
}

// Missing returns the legs that the record says nothing about. They are in the memory of the
// leader, or the log brings the row again for them.
func (r *LegRow) Missing() []string {
	return slices.DeleteFunc(slices.Clone(r.Matched), func(name string) bool {
		return slices.Contains(r.Done, name) || slices.Contains(r.Failed, name) || slices.Contains(r.Spilled, name) ||
			slices.Contains(r.Discarded, name)
	})
}

// LegEnd is the end of a leg of a row: it is delivered, FAILED, or has a counted retry.
type LegEnd struct {
	// Outcome is that of the leg: Outbox is the leg's name, and SpilledSeq, Row and Block are
	// the leg's.
	Outcome Outcome
	// Of is the row.
	Of Ref
	// Record is the row's record afterwards; nil: none.
	Record *LegRow
	// Own: the failure of the leg is recorded although its row was found settled or gone,
	// because a settled row does not end this leg.
	Own bool
}
