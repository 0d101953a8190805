package mysql

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// takeSnapshot returns a view of the tables and the matching position in the binlog. MariaDB
// reports it; for MySQL see the package documentation.
func (s *Source) takeSnapshot(ctx context.Context, sv *server, tables capture.Tables) (store.View, binlogPosition, error) {
	if err := s.control.readBinlogEnd(ctx, sv); err != nil {
		return nil, binlogPosition{}, err
	}
	before, err := s.control.executedGTIDs(ctx, sv)
	if err != nil {
		return nil, binlogPosition{}, err
	}

	from := binlogPosition{set: before, coords: sv.binlogEnd}
	view, err := tables.View(ctx, "")
	if err != nil {
		return nil, binlogPosition{}, err
	}

	if sv.flavour == mariaDB {
		from, err = viewPosition(view)
	} else {
		view, err = s.excludeOverlap(ctx, sv, view, &from)
	}
	if err != nil {
		view.Close()
		return nil, binlogPosition{}, err
	}

	return view, from, nil
}

// viewPosition returns the position of a view on MariaDB.
func viewPosition(view store.View) (from binlogPosition, err error) {
	from.set = emptySet(mariaDB) // before the very first transaction
	if text := view.Position(); text != "" {
		if from, err = parsePosition(text); err != nil {
			return from, err
		}
		from.resolveFlavour(mariaDB)
	}
	return from, err
}

// snapshotMarkPrefix is the prefix of markers that end an overlap. No receiver waits for
// them.
const snapshotMarkPrefix = "cut "

// excludeOverlap reads the transactions between a position and a marker that it writes
// now, and returns a view without their rows. It also sets the creation time of the
// position's file.
func (s *Source) excludeOverlap(ctx context.Context, sv *server, view store.View, from *binlogPosition) (store.View, error) {
	token := snapshotMarkPrefix + rand.Text()
	if err := s.Mark(ctx, token); err != nil {
		return view, err
	}

	streamed := map[string][]string{}
	out := make(chan capture.Batch)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)

	// A source of its own keeps this source's resume state.
	reader := &Source{cfg: s.cfg, control: s.control, stream: s.stream, server: sv}
	reader.resetState(sv, from.format(), *from)
	start := *from
	go func() {
		r := &dumpRun{source: reader, serverID: anyServerID(), from: start, snapshotMark: token, out: out}
		done <- r.read(ctx)
	}()

	for {
		select {
		case b := <-out:
			for i := range b.Items {
				name := b.Items[i].Outbox
				streamed[name] = append(streamed[name], b.Items[i].ID)
			}
			if slices.Contains(b.Marks, token) {
				cancel()
				ended := <-done // by the canceled context
				_ = ended
				if now, err := parsePosition(b.Position); err == nil && now.file == from.file {
					from.created = now.created
				}
				return &filteredView{View: view, streamed: streamed}, nil
			}
		case err := <-done:
			cancel()
			return view, fmt.Errorf("read transactions committed meanwhile: %w", err)
		}
	}
}

// filteredView is a view without the rows that the stream delivers.
type filteredView struct {
	store.View
	streamed map[string][]string // ids by outbox
}

// Unsettled implements store.View.
func (v *filteredView) Unsettled(ctx context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	return v.View.Unsettled(ctx, v.exclude(q))
}

// Pages implements store.View.
func (v *filteredView) Pages(ctx context.Context, q store.UnsettledQuery, page int, take func([]store.Item) error) error {
	return v.View.Pages(ctx, v.exclude(q), page, take)
}

func (v *filteredView) exclude(q store.UnsettledQuery) store.UnsettledQuery {
	ids := make([]string, 0, len(q.ExcludeIDs)+len(v.streamed[q.Outbox]))
	q.ExcludeIDs = append(append(ids, q.ExcludeIDs...), v.streamed[q.Outbox]...)
	return q
}
