package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// RowReport is what is known of one row: by its table, by the relay's records and, if this relay
// leads, by its memory.
type RowReport struct {
	store.Ref

	// Leads reports whether Legs say what the leader's memory has. Leader describes this relay's
	// role; "" without a relay.
	Leads  bool
	Leader string

	// State is that of the table. Stateless: the table keeps none, so State says nothing.
	State     store.RowState
	Stateless bool

	// Legs are the routes that know the row, or the outbox itself if it has no routes.
	Legs []LegReport

	// Source is the state of the log, if this relay leads. Mode is how rows are captured.
	Source SourceStatus
	Mode   Mode
}

// LegReport is what is known of a row on one route, or of an outbox without routes.
type LegReport struct {
	RouteName
	Sink     string
	Optional bool

	// Row is what the leader's memory has; nil if nothing.
	Row *dispatch.RowInfo

	// Failed is the row's record as FAILED, Spilled its copy among the spilled rows, and Pause a
	// pause of the whole route; each is nil if there is none. Unsearched: too many rows are spilled to
	// tell whether this one is.
	Failed     *store.DeadLetter
	Spilled    *store.Item
	Pause      *store.Hold
	Unsearched bool

	// Attempts are the failed attempts that the relay's records have, if Row has none; nil if none.
	Attempts *store.FailedAttempts

	// Block is the hold of the row's lane, if the row is FAILED and blocks it; else nil.
	Block *store.Hold

	// Done: the relay's records say that the route needs the row no more. Missing: they say that it
	// does, and only the leader knows more.
	Done, Missing bool
}

// RowStore is the part of a store that explains a row. It needs no leader.
type RowStore interface {
	store.RowStatusReader
	rowRecords
	LoadHolds(ctx context.Context) ([]store.Hold, error)
	Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error)
}

// rowRecords reads what the relay's records say of a row.
type rowRecords interface {
	legRecords
	ReadAttempts(ctx context.Context, row store.Ref) (*store.FailedAttempts, error)
	FindSpilled(ctx context.Context, row store.Ref) (it *store.Item, searched bool, err error)
}

// ExplainStored returns what the tables and the records say of a row of an outbox. It searches the
// spilled rows unless known returns what the leader's memory has of a leg; known may be nil.
func ExplainStored(ctx context.Context, st RowStore, o *store.Outbox, id string, known func(leg string) *dispatch.RowInfo) (*RowReport, error) {
	row := store.Ref{Outbox: o.Name, ID: id}
	rep := &RowReport{Ref: row, Stateless: o.Layout.State == store.StateNone}
	states, err := st.ReadStatuses(ctx, []store.ClaimRow{{Ref: row}})
	if err != nil {
		return nil, fmt.Errorf("read row %q of %s: %w", id, o.Name, err)
	}
	rep.State = states[0].State
	holds, err := st.LoadHolds(ctx)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}

	if len(o.Routes) == 0 {
		leg := LegReport{RouteName: RouteName{Outbox: o.Name}}
		if err := rep.readLeg(ctx, st, &leg, holds, known); err != nil {
			return nil, err
		}
		rep.Legs = []LegReport{leg}
		return rep, nil
	}
	records, err := st.LegRows(ctx, []store.Ref{row})
	if err != nil {
		return nil, fmt.Errorf("read the record of row %q of %s: %w", id, o.Name, err)
	}
	for _, r := range o.Routes {
		leg := LegReport{RouteName: RouteName{o.Name, r.Name}, Optional: r.Optional}
		if rec := records[0]; rec != nil {
			leg.Done, leg.Missing = slices.Contains(rec.Done, r.Name), slices.Contains(rec.Missing(), r.Name)
		}
		if err := rep.readLeg(ctx, st, &leg, holds, known); err != nil {
			return nil, err
		}
		if leg.Row != nil || leg.Failed != nil || leg.Spilled != nil || leg.Done || leg.Missing || leg.Unsearched && records[0] == nil {
			rep.Legs = append(rep.Legs, leg)
		}
	}
	return rep, nil
}

// readLeg reads what is known of the row on a leg.
func (rep *RowReport) readLeg(ctx context.Context, st RowStore, leg *LegReport, holds []store.Hold, known func(string) *dispatch.RowInfo) error {
	row := store.Ref{Outbox: leg.Leg(), ID: rep.ID}
	if known != nil {
		leg.Row = known(row.Outbox)
	}
	for i := range holds {
		switch h := &holds[i]; {
		case h.Lane.Outbox != row.Outbox:
		case h.Kind == store.OutboxPaused:
			leg.Pause = h
		case h.Kind == store.Blocked && h.ID == row.ID:
			leg.Block = h
		}
	}
	letters, err := st.Failed(ctx, store.DeadLetterFilter{Outbox: row.Outbox, IDs: []string{row.ID}}, 1, false)
	if err != nil {
		return fmt.Errorf("read FAILED rows of %s: %w", row.Outbox, err)
	}
	if len(letters) > 0 {
		leg.Failed = &letters[0]
	}
	if leg.Row == nil || len(leg.Row.Attempts) == 0 {
		if leg.Attempts, err = st.ReadAttempts(ctx, row); err != nil {
			return err
		}
	}
	if leg.Row == nil && leg.Failed == nil && (rep.State == store.RowUnsettled || rep.Stateless || leg.Route != "") {
		spilled, searched, err := st.FindSpilled(ctx, row)
		if err != nil {
			return err
		}
		leg.Spilled, leg.Unsearched = spilled, !searched
	}
	return nil
}

// Rows explains single rows of a relay.
type Rows struct{ relay *Relay }

// Rows returns the rows of the relay.
func (r *Relay) Rows() Rows { return Rows{r} }

// Explain returns what is known of a row of an outbox. A standby returns what the tables and the
// records say. The time is linear in the rows in memory. The error is a *RequestError for an unknown
// outbox, ErrNotLeading before the database was reached, or the database's.
func (d Rows) Explain(ctx context.Context, outbox, id string) (*RowReport, error) {
	r := d.relay
	boxes := r.opt().tables()
	at := slices.IndexFunc(boxes, func(o store.Outbox) bool { return o.Name == outbox })
	if at < 0 {
		names := make([]string, len(boxes))
		for i := range boxes {
			names[i] = boxes[i].Name
		}
		return nil, unknownOutboxError(outbox, names)
	}
	lanes, sinks := r.currentDispatchers.Load(), r.opt().routes()
	if lanes == nil && r.otherLeader.Load() == nil && r.tenure.Load() == nil { // the database may not be open yet
		return nil, ErrNotLeading
	}
	of := func(leg string) *dispatch.Dispatcher {
		if lanes == nil {
			return nil
		}
		return (*lanes)[sinks[leg]]
	}
	rep, err := ExplainStored(ctx, r.db.store, &boxes[at], id, func(leg string) *dispatch.RowInfo {
		if to := of(leg); to != nil {
			if in, known := to.Row(store.Ref{Outbox: leg, ID: id}); known {
				return &in
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range rep.Legs {
		leg := &rep.Legs[i]
		leg.Sink = sinks[leg.Leg()]
		if to := of(leg.Leg()); to != nil && leg.Spilled != nil {
			in := to.SpilledRow(leg.Spilled)
			leg.Row = &in
		}
	}
	rep.Leads = lanes != nil
	_, rep.Leader = r.Leader()
	now := r.Status()
	rep.Source, rep.Mode = now.Source, now.Mode
	return rep, nil
}

const (
	// attemptsInterval is the time between two writes of failed attempts. A crash loses that much.
	attemptsInterval = 2 * time.Second
	// attemptsBatch is the number of rows of one sink whose attempts one of them writes.
	attemptsBatch = 200
	// endedInterval is the time between two looks for rows that ended without the relay.
	endedInterval = time.Minute
)

// attemptKeeper keeps the failed attempts of rows in the relay's records, and drops those of rows that
// have ended.
type attemptKeeper struct {
	store       store.AttemptLog
	tables      store.RowStatusReader
	epoch       store.Epoch
	dispatchers map[string]*dispatch.Dispatcher
	stateful    func(outbox string) bool // its table tells whether a row has ended
	failed      func(error)
}

// newAttemptKeeper returns the keeper of a session. It gives the dispatchers what the records have.
func (r *Relay) newAttemptKeeper(ctx context.Context, tables store.RowStatusReader, epoch store.Epoch, sinks, legs map[string]*dispatch.Dispatcher) (*attemptKeeper, error) {
	k := &attemptKeeper{
		store: r.db.store, tables: tables, epoch: epoch, dispatchers: sinks,
		stateful: func(outbox string) bool {
			return r.outbox(outbox).Layout.State != store.StateNone
		},
		failed: func(err error) { r.log.Warn("attempts not saved; retrying", "error", err) },
	}
	var strays []store.Ref
	err := r.retryUnreachable(ctx, time.Time{}, func(ctx context.Context) error {
		all, err := r.db.store.LoadAttempts(ctx)
		strays = nil
		for i := range all {
			if to := legs[all[i].Outbox]; to != nil {
				to.LoadAttempts(&all[i])
			} else { // its route or outbox is not configured any more
				strays = append(strays, all[i].Ref)
			}
		}
		if err == nil && len(strays) > 0 {
			err = r.db.store.SaveAttempts(ctx, epoch, nil, strays)
		}
		return err
	})
	return k, err
}

// run writes attempts until the context ends and returns its error, or store.ErrNotLeader.
func (k *attemptKeeper) run(ctx context.Context) error {
	looked := time.Now()
	for {
		if err := backoff.Sleep(ctx, attemptsInterval); err != nil {
			return err
		}
		if time.Since(looked) > endedInterval {
			looked = time.Now()
			if err := k.dropEnded(ctx); err != nil {
				k.failed(err)
			}
		}
		for _, d := range k.dispatchers {
			if err := k.save(ctx, d); err != nil {
				return err
			}
		}
	}
}

// save writes what has changed in a dispatcher. It retries until it succeeds.
func (k *attemptKeeper) save(ctx context.Context, d *dispatch.Dispatcher) error {
	save, drop := d.TakeAttempts(attemptsBatch)
	retry := backoff.Doubling{Min: attemptsInterval, Max: time.Minute}
	for len(save)+len(drop) > 0 {
		err := k.store.SaveAttempts(ctx, k.epoch, save, drop)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrNotLeader):
			return err
		}
		k.failed(err)
		if err := backoff.Sleep(ctx, retry.Next()); err != nil {
			return err
		}
	}
	return nil
}

// dropEnded drops the attempts of rows that an operator discarded, or that another program or an
// earlier leader settled.
func (k *attemptKeeper) dropEnded(ctx context.Context) error {
	for _, d := range k.dispatchers {
		rows := slices.DeleteFunc(d.KeptRows(), func(row store.Ref) bool { return !k.stateful(row.Outbox) })
		if len(rows) == 0 {
			continue
		}
		look := make([]store.ClaimRow, len(rows))
		for i := range rows {
			look[i].Ref = rows[i]
		}
		states, err := k.tables.ReadStatuses(ctx, look)
		if err != nil {
			return fmt.Errorf("read rows with attempts: %w", err)
		}
		var ended []store.Ref
		for i, row := range rows {
			if s := states[i].State; s == store.RowCompleted || s == store.RowAbsent {
				ended = append(ended, row)
			}
		}
		d.DropAttempts(ended)
	}
	return nil
}
