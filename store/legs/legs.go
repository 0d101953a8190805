// Package legs joins the legs of rows. It stands between the dispatchers and the store of a relay
// of which an outbox has routes.
//
// A leg is a virtual outbox: dispatchers claim, settle and spill rows under its name, for example
// orders/hooks. [Store] translates the name to the outbox, and decides what the end of a leg means
// for the row. Rows of outboxes without routes pass straight through.
//
// # What is written, and when
//
// The legs of a row share a join in memory. The first leg that claims the row claims it for all,
// and the last one that ends writes its outcome. So a row with several legs costs as many
// statements as one without. Three things must outlive a crash, and are in the row's record, a
// [store.LegRow]: a leg has spilled the row, is FAILED, or has a counted retry. Where there is such
// a record, the end of any leg of the row is written before Settle returns.
//
// Of all other rows the marks of the legs tell which legs are done; see store.Checkpoint. A row
// that no mark covers, for example because it is polled, is unmarked: each end is recorded, and
// its outcome waits for all legs, the optional ones too.
//
// # Status of a row
//
//	required legs          COMPLETED                     FAILED
//	all must deliver       each delivered                all have ended, and one failed
//	any of them suffices   one delivered                 all failed
//	the row has none       an optional leg delivered     all failed
//
// An optional leg, and any leg of a row that is COMPLETED without it, delivers the row although it
// is settled. Its content is in memory or in its spilled copy.
//
// # Locks
//
// One write of a row is under way at a time. A claim, a spill or a deletion waits for it; an
// outcome is TooEarly, because its dispatcher writes it again soon. A call marks the rows of its
// statement as busy, and holds none while it waits for others.
package legs

import (
	"context"
	"sync"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// Options configure a Store.
type Options struct {
	// Polling: rows are read from tables only, so that no mark covers any of them.
	Polling bool
}

// Store is the store of a relay, for its legs. Its methods take the names of legs, and those of
// outboxes without routes. It is safe for concurrent use.
type Store struct {
	ledger.Store // of the database
	polling      bool
	legs         map[string]legOf // by name
	plans        map[string]*plan // by outbox

	mu      sync.Mutex
	rows    map[store.Ref]*entry
	changed chan struct{}              // closed once a busy row is free again
	missing map[string]map[string]bool // ids by outbox; see FindMissing
}

// legOf is what the name of a leg means.
type legOf struct {
	plan  *plan
	index int
}

func (l legOf) name() string { return store.LegName(l.plan.box.Name, l.plan.box.Routes[l.index].Name) }

func (l legOf) row(id string) store.Ref { return store.Ref{Outbox: l.plan.box.Name, ID: id} }

// entry is a join in memory. A join without live legs and holders stays only while it is busy.
type entry struct {
	join
	busy bool // a call reads or writes the row
	// unsure: a write failed, and may have changed the record. It is read again before the next use.
	unsure bool
	// numbers are those of FAILED rows without a seq, by leg.
	numbers map[int]store.Seq
}

// New returns a Store over that of the database. The outboxes are all outboxes of the relay.
func New(under ledger.Store, outboxes []store.Outbox, o Options) *Store {
	s := &Store{
		Store: under, polling: o.Polling, legs: map[string]legOf{}, plans: map[string]*plan{},
		rows: map[store.Ref]*entry{}, changed: make(chan struct{}),
	}
	for _, box := range outboxes {
		if len(box.Routes) == 0 {
			continue
		}
		p := newPlan(&box)
		s.plans[box.Name] = p
		for i, r := range box.Routes {
			s.legs[store.LegName(box.Name, r.Name)] = legOf{p, i}
		}
	}
	return s
}

// use is a row that a call works on; without a plan it is one of an outbox without routes.
type use struct {
	legOf
	row store.Ref
	// at is its entry. It is valid while the lock is held, and while the row is busy with this call.
	at   *entry
	held bool // the row is busy with this call
}

// uses returns n named rows, by position, and whether any of them is a leg's.
func (s *Store) uses(n int, name func(i int) *store.Ref) (all []use, some bool) {
	var leg legOf
	last := ""
	for i := range n {
		ref := name(i)
		if ref.Outbox != last || i == 0 {
			leg, last = s.legs[ref.Outbox], ref.Outbox
		}
		if leg.plan == nil {
			continue
		}
		if all == nil {
			all = make([]use, n)
		}
		all[i] = use{legOf: leg, row: leg.row(ref.ID)}
	}
	return all, all != nil
}

// acquire locks s.mu once each row of a leg has an entry. An entry that it creates has what the
// row's record says, and no leg if there is none: every leg has ended then. An entry of which a
// write failed takes over what the record says now.
func (s *Store) acquire(ctx context.Context, rows []use) error {
	for {
		s.mu.Lock()
		var missing []*use
		for i := range rows {
			u := &rows[i]
			if u.plan == nil {
				continue
			}
			if u.at = s.rows[u.row]; u.at == nil {
				u.at = &entry{unsure: true}
				s.rows[u.row] = u.at
			}
			if u.at.unread() {
				u.at.busy = true
				missing = append(missing, u)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		s.mu.Unlock()

		err := s.restore(ctx, missing)
		if err != nil {
			for _, u := range missing {
				s.tidy(u)
			}
		} else if s.all(rows) { // an entry that others removed meanwhile is read again
			return nil
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// unread reports whether the record of the row is to be read before the entry is used.
func (e *entry) unread() bool { return e.unsure && !e.busy }

// restore reads the records of rows whose entries are unsure, and locks s.mu.
func (s *Store) restore(ctx context.Context, rows []*use) error {
	refs := make([]store.Ref, len(rows))
	for i, u := range rows {
		refs[i] = u.row
	}
	records, err := s.LegRows(ctx, refs)
	s.mu.Lock()
	for i, u := range rows {
		u.at.busy = false
		if err == nil {
			u.at.unsure = false
			u.at.restore(u.plan, records[i]) // a claim tells whether the row is settled
			u.at.unmarked = u.at.unmarked || s.polling
		}
	}
	s.wake()
	return err
}

// all reports whether the entries of all rows are those that were found, and none is to be read
// again. The lock is held.
func (s *Store) all(rows []use) bool {
	for i := range rows {
		if u := &rows[i]; u.plan != nil && (s.rows[u.row] != u.at || u.at.unread()) {
			return false
		}
	}
	return true
}

// release ends the use of entries, and unlocks s.mu.
func (s *Store) release(rows []use) {
	for i := range rows {
		s.tidy(&rows[i])
	}
	s.wake()
	s.mu.Unlock()
}

// tidy removes an entry that nobody needs. The lock is held.
func (s *Store) tidy(u *use) {
	if u.at != nil && !u.at.busy && u.at.idle() && s.rows[u.row] == u.at {
		delete(s.rows, u.row)
	}
}

// wake wakes calls that wait for busy rows. The lock is held.
func (s *Store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait releases the entries and waits until a busy row is free.
func (s *Store) wait(ctx context.Context, rows []use) error {
	changed := s.changed
	for i := range rows {
		s.tidy(&rows[i])
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-changed:
		return nil
	}
}

// AwaitTable implements store.TableAwaiter.
func (s *Store) AwaitTable(ctx context.Context, outbox string) error {
	if leg, is := s.legs[outbox]; is {
		outbox = leg.plan.box.Name
	}
	return s.Store.AwaitTable(ctx, outbox)
}

// ReadSettled implements store.StatusReader. A row of a leg is settled if the outbox's row is.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	return s.Store.ReadSettled(ctx, s.inTables(rows))
}

// ReadUntried implements store.UntriedReader. It is unknown whether a leg has tried a row.
func (s *Store) ReadUntried(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	ask, at := make([]store.ClaimRow, 0, len(rows)), make([]int, 0, len(rows))
	for i := range rows {
		if _, is := s.legs[rows[i].Outbox]; !is {
			ask, at = append(ask, rows[i]), append(at, i)
		}
	}
	untried := make([]bool, len(rows))
	if len(ask) == 0 {
		return untried, nil
	}
	got, err := s.Store.ReadUntried(ctx, ask)
	for k, is := range got {
		untried[at[k]] = is
	}
	return untried, err
}

// ReadStatuses implements store.RowStatusReader. A row of a leg has the state of the outbox's row.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	return s.Store.ReadStatuses(ctx, s.inTables(rows))
}

// inTables returns rows under the names of their outboxes.
func (s *Store) inTables(rows []store.ClaimRow) []store.ClaimRow {
	named := make([]store.ClaimRow, len(rows))
	for i, r := range rows {
		if leg, is := s.legs[r.Outbox]; is {
			r.Ref = leg.row(r.ID)
		}
		named[i] = r
	}
	return named
}
