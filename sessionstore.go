package sluicebox

import (
	"context"

	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/legs"
)

// laneStore is a store by lane: an outbox with routes has its legs in its place.
type laneStore interface {
	dispatch.Store
	checkpoint.StartStore
}

// sessionStore is the store of a session. Without routes it is the relay's own, so that nothing
// stands between the dispatchers and the database.
type sessionStore struct {
	laneStore
	join *legs.Store // nil without routes
	fan  *fanOut     // nil without routes
}

// newSessionStore returns the store of a session that begins.
func (r *Relay) newSessionStore(polling bool) (*sessionStore, error) {
	if !r.opt().hasRoutes() {
		return &sessionStore{laneStore: r.db.store}, nil
	}
	join := legs.New(r.db.store, r.opt().tables(), legs.Options{Polling: polling})
	fan, err := r.opt().newFanOut(join, r.db.store, polling)
	return &sessionStore{laneStore: join, join: join, fan: fan}, err
}

// adoptMissing sees to the rows that a leg had in the last leader's memory only, because after a
// snapshot and while polling no mark tells which they are; see legs.Store.
func (s *sessionStore) adoptMissing(ctx context.Context, begin *checkpoint.StartPoint, polling bool) error {
	if s.join == nil || begin.SnapshotReason == "" && !polling {
		return nil
	}
	return s.join.AdoptMissing(ctx, begin.Epoch)
}

// rerouteUnmatched gives rows that no route matched, and that are spilled, to the routes that match
// them now: the configuration may have others than when they were read. A row that the log, or a poll, brings
// again comes with the rows of its group.
func (s *sessionStore) rerouteUnmatched(ctx context.Context, begin *checkpoint.StartPoint, polling bool) error {
	if s.join == nil {
		return nil
	}
	for _, b := range s.fan.boxes {
		again := func(route string, seq store.Seq) bool {
			mark := begin.Watermark.Legs[store.LegName(b.name, route)]
			return b.showsUnsettled && (polling || mark.Position != "" && seq > mark.Seq)
		}
		if _, err := s.join.Reroute(ctx, begin.Epoch, b.legs[len(b.legs)-1].name, b.routesOf, again); err != nil {
			return err
		}
	}
	return nil
}

// replays returns the store of replays, in which a row of a leg has the state of its outbox's row.
func (s *sessionStore) replays(db replay.Store) replay.Store {
	if s.join != nil {
		return s.join
	}
	return db
}

// startStore is the store of a start. It spills the rows of an outbox with routes once for each of
// their legs.
type startStore struct {
	laneStore
	join *legs.Store
	fan  *fanOut
}

// View implements store.Viewer. The view of a snapshot shows the rows that are missing a leg.
func (s startStore) View(ctx context.Context, snapshot string) (store.View, error) {
	v, err := s.laneStore.View(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	found := false
	return legView{v, func(ctx context.Context, outbox string) ([]string, error) {
		if !found { // not before: the last leader may still spill rows
			if err := s.join.FindMissing(ctx); err != nil {
				return nil, err
			}
			found = true
		}
		return s.join.Missing(outbox), nil
	}}, nil
}

// legView is a view that shows rows although a leg has spilled them, because they are missing
// another one.
type legView struct {
	store.View
	missing func(ctx context.Context, outbox string) ([]string, error)
}

// Unsettled implements store.View.
func (v legView) Unsettled(ctx context.Context, q store.UnsettledQuery) (items []store.Item, err error) {
	if q.IncludeSpilled, err = v.missing(ctx, q.Outbox); err != nil {
		return nil, err
	}
	return v.View.Unsettled(ctx, q)
}

// Pages implements store.View.
func (v legView) Pages(ctx context.Context, q store.UnsettledQuery, page int, take func([]store.Item) error) (err error) {
	if q.IncludeSpilled, err = v.missing(ctx, q.Outbox); err != nil {
		return err
	}
	return v.View.Pages(ctx, q, page, take)
}

// Spill implements store.Spiller.
func (s startStore) Spill(ctx context.Context, epoch store.Epoch, items []store.Item) error {
	all, err := s.fan.legItems(ctx, epoch, items)
	if err != nil || len(all) == 0 {
		return err
	}
	return s.laneStore.Spill(ctx, epoch, all)
}
