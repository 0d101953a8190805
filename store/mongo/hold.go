package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/errortext"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// holdKey is the _id of a hold.
type holdKey struct {
	Relay  string      `bson:"relay"`
	Outbox string      `bson:"outbox"`
	Lane   bson.Binary `bson:"lane"`
	Hold   string      `bson:"hold"`
}

// holdDocument is a hold in sluicebox_hold.
type holdDocument struct {
	Key        holdKey       `bson:"_id"`
	Kind       string        `bson:"kind"`
	Group      *string       `bson:"group"`
	ID         string        `bson:"id"`
	RetryCount int64         `bson:"retryCount"`
	Reason     string        `bson:"reason"`
	Since      bson.DateTime `bson:"since"`
}

func hashOf(lane store.LaneHash) bson.Binary { return bson.Binary{Data: lane[:]} }

func (s *Store) holdKey(lane store.LaneKey, kind store.HoldKind) holdKey {
	return holdKey{s.name, lane.Outbox, hashOf(lane.Hash()), kind.String()}
}

// groupText is a group as the relay's collections store it; nil means no group.
func groupText(g store.Group) *string {
	if !g.Valid {
		return nil
	}
	return &g.Name
}

func groupOf(text *string) store.Group {
	if text == nil {
		return store.Group{}
	}
	return store.GroupOf(*text)
}

// LoadHolds implements store.Holds.
func (s *Store) LoadHolds(ctx context.Context) ([]store.Hold, error) {
	var holds []store.Hold
	err := s.read(ctx, func(ctx context.Context, on *conn) error {
		for _, name := range s.outboxes.Names() {
			of, err := s.readHolds(ctx, on, name)
			if err != nil {
				return err
			}
			if of, err = activeHolds(ctx, on.table(s.outboxes.Lookup(name)), of); err != nil {
				return err
			}
			holds = append(holds, of...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load holds: %w", Explain(err))
	}
	return holds, nil
}

// readHolds reads the holds of an outbox.
func (s *Store) readHolds(ctx context.Context, on *conn, outbox string) (holds []store.Hold, err error) {
	filter := bson.D{{Key: "_id.relay", Value: s.name}, {Key: "_id.outbox", Value: outbox}}
	err = forEach(ctx, commandTimeout, on.ownCollection(ownHold), filter, options.Find(), func(doc bson.Raw) error {
		var d holdDocument
		if err := bson.Unmarshal(doc, &d); err != nil {
			return fmt.Errorf("in %s: %w", ownHold, err)
		}
		kind, err := store.ParseHoldKind(d.Key.Hold)
		if err != nil {
			return fmt.Errorf("in %s: %w", ownHold, err)
		}
		holds = append(holds, store.Hold{
			Lane: store.LaneKey{Outbox: outbox, Kind: d.Kind, Group: groupOf(d.Group)},
			Kind: kind, ID: d.ID, RetryCount: int(d.RetryCount), Reason: d.Reason, Since: d.Since.Time().UTC(),
		})
		return nil
	})
	return holds, err
}

// activeHolds drops holds that no longer apply: a lane stays blocked only while the
// document is FAILED.
func activeHolds(ctx context.Context, t *table, all []store.Hold) ([]store.Hold, error) {
	var ids []string
	for i := range all {
		if all[i].Kind == store.Blocked {
			ids = append(ids, all[i].ID)
		}
	}

	failed, err := t.failedAmong(ctx, ids)
	if err != nil {
		return nil, err
	}

	holds := all[:0]
	for _, h := range all {
		if h.Kind != store.Blocked || failed[h.ID] {
			holds = append(holds, h)
		}
	}
	return holds, nil
}

// failedAmong returns the ids whose documents are FAILED.
func (t *table) failedAmong(ctx context.Context, ids []string) (map[string]bool, error) {
	failed := map[string]bool{}
	if len(ids) == 0 {
		return failed, nil
	}

	filter := append(bson.D{t.idIn(ids)}, t.failed()...)
	err := forEach(ctx, commandTimeout, t.collection, filter, options.Find().SetProjection(project(t.id())), func(doc bson.Raw) error {
		if id, err := document.ID(document.Lookup(doc, t.id())); err == nil {
			failed[id] = true
		}
		return nil
	})
	return failed, err
}

// Hold implements store.Holds. The reason is sanitised like an error text of Settle, and
// the time is truncated to milliseconds.
func (s *Store) Hold(ctx context.Context, epoch store.Epoch, h store.Hold) error {
	if _, err := s.outboxes.FindValid(h.Lane.Outbox, &h); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error { return s.putHold(ctx, on, &h) })
	if err != nil {
		return fmt.Errorf("hold lane %s: %w", h.Lane, asRefused(err))
	}
	return nil
}

// putHold records a hold, in the call's transaction.
func (s *Store) putHold(ctx context.Context, on *conn, h *store.Hold) error {
	return upsertOne(ctx, on.ownCollection(ownHold), s.holdKey(h.Lane, h.Kind), bson.D{{Key: "$set", Value: bson.D{
		{Key: "kind", Value: h.Lane.Kind}, {Key: "group", Value: groupText(h.Lane.Group)}, {Key: "id", Value: h.ID},
		{Key: "retryCount", Value: int64(h.RetryCount)}, {Key: "reason", Value: errortext.Sanitize(h.Reason, 0, false)},
		{Key: "since", Value: bson.NewDateTimeFromTime(h.Since)},
	}}})
}

// deleteBlocks deletes the blocked holds that the given documents caused, in the call's
// transaction.
func (s *Store) deleteBlocks(ctx context.Context, on *conn, outbox string, ids []string) error {
	_, err := remove(ctx, on.ownCollection(ownHold), bson.D{
		{Key: "_id.relay", Value: s.name}, {Key: "_id.outbox", Value: outbox},
		{Key: "id", Value: bson.D{{Key: "$in", Value: ids}}}, {Key: "_id.hold", Value: store.Blocked.String()},
	})
	return err
}

// Release implements store.Holds.
func (s *Store) Release(ctx context.Context, epoch store.Epoch, lane store.LaneKey, kind store.HoldKind) error {
	if _, err := s.outboxes.Find(lane.Outbox); err != nil {
		return fmt.Errorf("release lane %s: %w", lane, err)
	}
	err := s.runAsLeader(ctx, epoch, func(ctx context.Context, on *conn) error {
		_, err := remove(ctx, on.ownCollection(ownHold), bson.D{{Key: "_id", Value: s.holdKey(lane, kind)}})
		return err
	})
	if err != nil {
		return fmt.Errorf("release lane %s: %w", lane, asRefused(err))
	}
	return nil
}
