package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/byoutbox"
)

// ReadSettled implements store.StatusReader.
func (s *Store) ReadSettled(ctx context.Context, rows []store.ClaimRow) ([]bool, error) {
	parts, err := byoutbox.Split(s.outboxes, rows)
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
func readSettledOf(ctx context.Context, t *table, p *byoutbox.Part, rows []store.ClaimRow, settled []bool) error {
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
