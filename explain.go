package sluicebox

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
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

	// Blocks: the row is FAILED and blocks its lane.
	Blocks bool

	// Done: the relay's records say that the route needs the row no more. Missing: they say that it
	// does, and only the leader knows more.
	Done, Missing bool
}

// RowStore is the part of a store that explains a row. It needs no leader.
type RowStore interface {
	store.RowStatusReader
	LegRows(ctx context.Context, rows []store.Ref) ([]*store.LegRow, error)
	LoadHolds(ctx context.Context) ([]store.Hold, error)
	Failed(ctx context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error)
	FindSpilled(ctx context.Context, row store.Ref) (it *store.Item, searched bool, err error)
}

// ExplainStored returns what the tables and the records say of a row of an outbox. It searches the
// spilled rows unless known returns what the leader's memory has of a leg; known may be nil.
func ExplainStored(ctx context.Context, st RowStore, o *store.Outbox, id string, known func(leg string) *dispatch.RowInfo) (*RowReport, error) {
	row := store.Ref{Outbox: o.Name, ID: id}
	rep := &RowReport{Ref: row, Stateless: o.Layout.State == store.StateNone || o.Layout.LogOnly()}
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
		if leg.Row != nil || leg.Failed != nil || leg.Spilled != nil || leg.Done || leg.Missing {
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
			leg.Blocks = true
		}
	}
	letters, err := st.Failed(ctx, store.DeadLetterFilter{Outbox: row.Outbox, IDs: []string{row.ID}}, 1, false)
	if err != nil {
		return fmt.Errorf("read FAILED rows of %s: %w", row.Outbox, err)
	}
	if len(letters) > 0 {
		leg.Failed = &letters[0]
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
