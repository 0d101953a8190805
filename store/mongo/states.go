package mongo

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// ReadStatuses implements store.RowStatusReader. Like ReadSettled, it first writes a document
// of its own.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", err)
	}

	states := make([]store.RowStatus, len(rows))
	parts = slices.DeleteFunc(parts, func(p *outboxes.Part) bool { return p.MarkAbsent(states) })
	if len(parts) == 0 {
		return states, nil
	}

	err = s.read(ctx, func(ctx context.Context, on *conn) error {
		if err := s.awaitMajorityRead(ctx, on); err != nil {
			return err
		}
		for _, p := range parts {
			if err := statesOf(ctx, on.table(p.Outbox), p, rows, states); err != nil {
				return err
			}
			p.CopyDuplicateStatuses(rows, states)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", Explain(err))
	}

	return states, nil
}

// statesOf reads the rows of one outbox. An id that two documents have is reported as
// unsettled.
func statesOf(ctx context.Context, t *table, p *outboxes.Part, rows []store.ClaimRow, states []store.RowStatus) error {
	var plain, full []int
	for _, i := range p.Indexes {
		states[i] = store.RowStatus{State: store.RowAbsent}
		if p.WantsPayload(rows, i) {
			full = append(full, i)
		} else {
			plain = append(plain, i)
		}
	}

	l := &t.Layout.Columns
	fields := []string{l.ID, l.Status, l.Delivered, l.Failed}
	for _, ask := range []struct {
		at     []int
		fields []string
	}{{plain, fields}, {full, append(fields, l.Payload)}} {
		if len(ask.at) == 0 {
			continue
		}
		ids := make([]string, len(ask.at))
		for k, i := range ask.at {
			ids[k] = rows[i].ID
		}
		opts := options.Find().SetProjection(project(ask.fields...))
		err := forEach(ctx, commandTimeout, t.collection, bson.D{t.idIn(ids)}, opts, func(doc bson.Raw) error {
			id, err := document.ID(document.Lookup(doc, l.ID))
			i, asked := p.FirstIndex[id]
			if err != nil || !asked {
				return nil // no text matches such an id
			}
			again := states[i].State != store.RowAbsent
			if states[i] = t.state(doc); again {
				states[i] = store.RowStatus{State: store.RowUnsettled}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// state returns the state of a document, and the payload of a COMPLETED document if the
// payload was read.
func (t *table) state(doc bson.Raw) store.RowStatus {
	switch {
	case t.isDelivered(doc):
		return store.RowStatus{State: store.RowCompleted, Payload: document.Payload(document.Lookup(doc, t.Layout.Columns.Payload))}
	case t.isFailed(doc):
		return store.RowStatus{State: store.RowFailed}
	}
	return store.RowStatus{State: store.RowUnsettled}
}

// isFailed reports whether a document, read with its state, is FAILED.
func (t *table) isFailed(doc bson.Raw) bool {
	switch t.Layout.State {
	case store.StateTimestamps:
		return !document.Absent(document.Lookup(doc, t.Layout.Columns.Failed))
	case store.StateNumbers:
		n, ok := document.Lookup(doc, t.Layout.Columns.Status).AsFloat64OK()
		return ok && slices.ContainsFunc(t.Layout.FailedCodes(), func(code int) bool { return n == float64(code) })
	}
	return t.hasStatus(doc, store.Failed)
}

// ReadSettled implements store.StatusReader.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", err)
	}

	settled := make([]bool, len(rows))
	if len(rows) == 0 {
		return settled, nil
	}

	err = s.read(ctx, func(ctx context.Context, on *conn) error {
		if err := s.awaitMajorityRead(ctx, on); err != nil {
			return err
		}
		for _, p := range parts {
			if err := readSettledOf(ctx, on.table(p.Outbox), p, rows, settled); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", Explain(err))
	}

	return settled, nil
}

// awaitMajorityRead writes one of the relay's documents with majority write concern. Later
// reads in the session are no older than that write. Otherwise a deposed primary that has
// not noticed yet could report a document as gone although its successor has it.
func (s *Store) awaitMajorityRead(ctx context.Context, on *conn) error {
	return upsertOne(ctx, on.ownCollection(ownMeta), bson.D{{Key: "relay", Value: s.name}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "looks", Value: int64(1)}}}})
}

// readSettledOf reads the rows of one outbox. It reports false for the repetitions of an
// id, and for an id that two documents have.
func readSettledOf(ctx context.Context, t *table, p *outboxes.Part, rows []store.ClaimRow, settled []bool) error {
	if t.Layout.State == store.StateNone {
		return nil // such a collection keeps no state
	}

	ids := make([]string, len(p.Indexes))
	for k, i := range p.Indexes {
		ids[k] = rows[i].ID
		settled[i] = true // gone unless found
	}

	found := map[int]bool{}
	return t.states(ctx, ids, func(id string, open bool, _ bson.Raw) error {
		if i, asked := p.FirstIndex[id]; asked {
			settled[i] = !open && !found[i]
			found[i] = true
		}
		return nil
	})
}
