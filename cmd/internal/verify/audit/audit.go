package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// Window limits the rows by the time of their insert: Since <= t < Until. A zero time is no limit.
// Rows that are not settled have no such time and are always read.
type Window struct{ Since, Until time.Time }

// Target is a receiver with the outboxes whose rows it gets.
type Target struct {
	Name     string // of the outbox or the route; "" for all outboxes without routes
	Outboxes []Outbox
	Receipts []Receipts
	// IDPrefix is removed from the ids of receipts; see the key id-prefix of sinks.
	IDPrefix string
}

// Options of an Audit.
type Options struct {
	verify.Options
	// Settle is how long a row may be neither settled nor excused before it is lost.
	Settle time.Duration
	// Sums compares the bodies of receipts with the payloads of COMPLETED rows.
	Sums bool
}

// Result is the report of a target.
type Result struct {
	Target string `json:"target,omitempty"`
	*verify.Report
	// Notes say what could not be checked.
	Notes []string `json:"notes,omitempty"`
}

// Audit compares the rows of one target with its receipts, in rounds.
type Audit struct {
	tables  Tables
	target  Target
	options Options
	checker *verify.Checker
	// open has the rows that were not settled in the last round, with the time when they were
	// first seen so.
	open    map[string]time.Time
	started bool
}

// New returns an audit. It reads with the first Round.
func New(tables Tables, target Target, o Options) *Audit {
	return &Audit{tables: tables, target: target, options: o, checker: verify.New(o.Options), open: map[string]time.Time{}}
}

// Round reads the rows of a window, and the receipts that were added, and compares them. After an
// error the next round reads the rows again.
func (a *Audit) Round(ctx context.Context, w Window) (*Result, error) {
	if a.started {
		a.checker.Round(w.Since)
	}
	a.started = true
	res := &Result{Target: a.target.Name}
	open, now := map[string]time.Time{}, time.Now() // before anything is read, because Once counts the settle time from here
	holds, attempts, err := a.readRecords(ctx)
	if err != nil {
		return nil, err
	}
	for i := range a.target.Outboxes {
		box := &a.target.Outboxes[i]
		t := &truth{tables: a.tables, box: box, window: w, sums: a.options.Sums, take: a.checker.Row}
		t.owed = func(id string) bool {
			key := box.Name + "/" + id
			since, known := a.open[key]
			if !known {
				since = now
			}
			open[key] = since
			return known && now.Sub(since) >= a.options.Settle
		}
		t.excuse(holds, attempts)
		note, err := t.read(ctx)
		if err != nil {
			return nil, err
		}
		if note != "" {
			res.Notes = append(res.Notes, note)
		}
	}
	a.open = open
	for _, r := range a.target.Receipts {
		err := r.Read(ctx, func(arrival verify.Arrival) {
			if len(a.target.Receipts) > 1 {
				arrival.Chain = "" // the messages of a chain may be in any of them
			}
			arrival.ID = strings.TrimPrefix(arrival.ID, a.target.IDPrefix)
			a.checker.Arrive(arrival)
		})
		if err != nil {
			return nil, err
		}
	}
	res.Report = a.checker.Report()
	return res, nil
}

// readRecords reads why rows wait.
func (a *Audit) readRecords(ctx context.Context) (holds []store.Hold, attempts []store.FailedAttempts, err error) {
	if holds, err = a.tables.LoadHolds(ctx); err != nil {
		return nil, nil, fmt.Errorf("read holds: %w", err)
	}
	if attempts, err = a.tables.LoadAttempts(ctx); err != nil {
		return nil, nil, fmt.Errorf("read attempts: %w", err)
	}
	return holds, attempts, nil
}

// firstWait is the wait before the second round of Once; it doubles from round to round.
const firstWait = 250 * time.Millisecond

// Once repeats rounds until no row is on its way, or for the settle time, and returns the last result.
// waiting is called before each wait with the rows that it waits for.
func (a *Audit) Once(ctx context.Context, w Window, waiting func(rows int)) (*Result, error) {
	end := time.Now().Add(a.options.Settle)
	for wait := firstWait; ; wait *= 2 {
		last := !time.Now().Before(end)
		res, err := a.Round(ctx, w)
		if err != nil || last || res.Waiting == 0 {
			return res, err
		}
		waiting(res.Waiting)
		if err := backoff.Sleep(ctx, min(wait, max(0, time.Until(end)))); err != nil {
			return nil, err
		}
	}
}

// Close closes the receipts.
func (a *Audit) Close() {
	for _, r := range a.target.Receipts {
		r.Close()
	}
}
