package mongo

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
)

// ReadStatuses implements store.RowStatusReader. An id that two documents have is reported as
// unsettled.
func (s *Store) ReadStatuses(ctx context.Context, rows []store.ClaimRow) ([]store.RowStatus, error) {
	states := make([]store.RowStatus, len(rows))
	for i := range states {
		states[i].State = store.RowAbsent
	}
	err := s.lookUp(ctx, rows, func(ctx context.Context, t *table, p *outboxes.Part) error {
		var plain, full []int
		for _, i := range p.Indexes {
			if p.WantsPayload(rows, i) {
				full = append(full, i)
			} else {
				plain = append(plain, i)
			}
		}

		visit := func(id string, doc bson.Raw) error {
			i, asked := p.FirstIndex[id]
			if !asked {
				return nil
			}
			again := states[i].State != store.RowAbsent
			if states[i] = t.state(doc); again {
				states[i] = store.RowStatus{State: store.RowUnsettled}
			}
			return nil
		}
		if err := t.eachOf(ctx, idsOf(rows, plain), project(t.stateFields()...), visit); err != nil {
			return err
		}
		err := t.eachOf(ctx, idsOf(rows, full), project(append(t.stateFields(), t.contentFields()...)...), visit)
		p.CopyDuplicateStatuses(rows, states)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read row statuses: %w", err)
	}
	return states, nil
}

// ReadSettled implements store.StatusReader. It reports false for the repetitions of an id,
// and for an id that two documents have.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	settled := make([]bool, len(rows))
	err := s.lookUp(ctx, rows, func(ctx context.Context, t *table, p *outboxes.Part) error {
		for _, i := range p.Indexes {
			settled[i] = true // gone unless found
		}
		found := map[int]bool{}
		return t.eachOf(ctx, idsOf(rows, p.Indexes), project(t.stateFields()...), func(id string, doc bson.Raw) error {
			if i, asked := p.FirstIndex[id]; asked {
				settled[i] = !t.isOpen(doc) && !found[i]
				found[i] = true
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read settled rows: %w", err)
	}
	return settled, nil
}

// ReadUntried implements store.UntriedReader. It reports false for an id that two documents have.
func (s *Store) ReadUntried(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	untried := make([]bool, len(rows))
	err := s.lookUp(ctx, rows, func(ctx context.Context, t *table, p *outboxes.Part) error {
		if !t.Layout.WritesClaims() {
			return nil
		}
		found := map[int]bool{}
		return t.eachOf(ctx, idsOf(rows, p.Indexes), project(t.id()), func(id string, _ bson.Raw) error {
			if i, asked := p.FirstIndex[id]; asked {
				untried[i] = !found[i]
				found[i] = true
			}
			return nil
		}, append(t.open(), t.withRetries(0)...)...)
	})
	if err != nil {
		return nil, fmt.Errorf("read untried rows: %w", err)
	}
	return untried, nil
}

// lookUp calls read for the rows of each outbox that keeps a state. It first writes one of
// the relay's documents, so that a deposed primary cannot report a document as gone: later
// reads in the session are no older than that write.
func (s *Store) lookUp(ctx context.Context, rows []store.ClaimRow, read func(context.Context, *table, *outboxes.Part) error) error {
	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return err
	}
	parts = slices.DeleteFunc(parts, func(p *outboxes.Part) bool { return p.Outbox.Layout.LogOnly() })
	if len(parts) == 0 {
		return nil
	}

	return Explain(s.read(ctx, func(ctx context.Context, on *conn) error {
		if err := s.confirmPrimary(ctx, on); err != nil {
			return err
		}
		for _, p := range parts {
			if err := read(ctx, on.table(p.Outbox), p); err != nil {
				return err
			}
		}
		return nil
	}))
}

// confirmPrimary writes, so that later reads see everything that the present primary had. A deposed primary that does
// not know it yet cannot write to a majority, and a new one has committed a write of its own term.
func (s *Store) confirmPrimary(ctx context.Context, on *conn) error {
	looks := bson.D{{Key: "$inc", Value: bson.D{{Key: "looks", Value: int64(1)}}}}
	return upsertOne(ctx, on.ownCollection(ownMeta), bson.D{{Key: "relay", Value: s.name}}, looks)
}

// state returns the state of a document, and the content of a COMPLETED document if it was
// read.
func (t *table) state(doc bson.Raw) store.RowStatus {
	switch t.statusOf(doc) {
	case store.Completed:
		payload, attributes := t.content(doc)
		return store.RowStatus{State: store.RowCompleted, Payload: payload, Attributes: attributes}
	case store.Failed:
		return store.RowStatus{State: store.RowFailed}
	}
	return store.RowStatus{State: store.RowUnsettled}
}
