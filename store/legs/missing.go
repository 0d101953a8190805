package legs

import (
	"context"
	"maps"
	"slices"

	"github.com/sluicebox/sluicebox/store"
)

// At a start whose log does not bring the rows again, for example after a snapshot or while polling,
// a row may be missing a leg: one leg has spilled it, and another had it in the memory of the last
// leader only. A view leaves out spilled rows, so it would leave out this one too. But its place is
// among the rows of the table: the other leg may be missing earlier ones that nobody has spilled. So
// the views of such a start show the missing rows, and their legs get all rows in the order of the
// table. Only rows that the table does not show as unsettled are copied from the leg that has
// spilled them.

// statusRows is the number of rows of one status read.
const statusRows = 2000

// FindMissing reads which rows are missing a leg; see Missing. Call it at a start whose log does not
// bring the rows again, before its view is read.
func (s *Store) FindMissing(ctx context.Context) error {
	found := map[string]map[string]bool{}
	for name := range s.plans {
		ids := map[string]bool{}
		err := s.EachLegRow(ctx, name, func(r *store.LegRow) {
			if len(r.Spilled) > 0 && len(r.Missing()) > 0 {
				ids[r.ID] = true
			}
		})
		if err != nil {
			return err
		}
		found[name] = ids
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = found
	return nil
}

// Missing returns the ids of the rows of an outbox that are missing a leg and were not placed since. A view
// must show them although a leg has spilled them; see store.UnsettledQuery.
func (s *Store) Missing(outbox string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.missing[outbox]))
}

// Placed records that rows are in the lanes of their legs, or spilled.
func (s *Store) Placed(rows []Row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rows {
		delete(s.missing[rows[i].Outbox], rows[i].ID)
	}
}

// AdoptMissing finds the missing rows, and gives their legs copies of those that the table does not
// show as unsettled, under the numbers of the copies of other legs. Call it before the spilled lanes
// are read.
func (s *Store) AdoptMissing(ctx context.Context, epoch store.Epoch) error {
	if err := s.FindMissing(ctx); err != nil {
		return err
	}
	for name, p := range s.plans {
		ids := s.Missing(name)
		if !p.box.Layout.LogOnly() {
			var err error
			if ids, err = s.settledAmong(ctx, name, ids); err != nil {
				return err
			}
		}
		if len(ids) == 0 {
			continue
		}
		if _, err := s.AdoptLegs(ctx, epoch, name, ids); err != nil {
			return err
		}
		s.mu.Lock()
		for _, id := range ids {
			delete(s.missing[name], id)
		}
		s.mu.Unlock()
	}
	return nil
}

// settledAmong returns the ids of rows that are settled or gone.
func (s *Store) settledAmong(ctx context.Context, outbox string, ids []string) (some []string, err error) {
	for chunk := range slices.Chunk(ids, statusRows) {
		rows := make([]store.ClaimRow, len(chunk))
		for i, id := range chunk {
			rows[i].Ref = store.Ref{Outbox: outbox, ID: id}
		}
		settled, err := s.Store.ReadSettled(ctx, rows)
		if err != nil {
			return nil, err
		}
		for i, is := range settled {
			if is {
				some = append(some, chunk[i])
			}
		}
	}
	return some, nil
}
