package mysql

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// cut returns a view of the tables and the place in the binlog that matches.
//
// MariaDB tells the place of a view by itself. MySQL does not: the transactions
// that were executed before the view was opened are in it, those of after it are
// not, and some in between may be in both. Those are read out of the binlog, and
// the view leaves their rows out.
func (s *Source) cut(ctx context.Context, sv *server, tables capture.Tables) (store.View, place, error) {
	if err := s.locate(ctx, sv); err != nil {
		return nil, place{}, err
	}
	before, err := s.executed(ctx, sv)
	if err != nil {
		return nil, place{}, err
	}
	from := place{set: before, coords: sv.end}
	view, err := tables.View(ctx, "")
	if err != nil {
		return nil, place{}, err
	}
	if sv.flavour == mariaDB {
		from, err = matching(view)
	} else {
		view, err = s.withoutOverlap(ctx, sv, view, &from)
	}
	if err != nil {
		view.Close()
		return nil, place{}, err
	}
	return view, from, nil
}

// matching returns the place of a view of MariaDB. Its coordinates stay unknown:
// those of the end of the binlog are of another moment, see checkFile.
func matching(view store.View) (place, error) {
	if text := view.Position(); text != "" {
		return parsePosition(text)
	}
	return place{set: emptySet(mariaDB)}, nil // before the first transaction of all
}

// cutMark begins the tokens of the markers that end an overlap. No receiver waits
// for them.
const cutMark = "cut "

// withoutOverlap reads what was committed between a place and a marker that is
// written now, and returns a view that leaves those rows out. gtid_executed would
// not do as the end: it lacks transactions that a view may show, and holds such as
// are not in this binlog. It notes when the place's file was made.
func (s *Source) withoutOverlap(ctx context.Context, sv *server, view store.View, from *place) (store.View, error) {
	token := cutMark + rand.Text()
	if err := s.Mark(ctx, token); err != nil {
		return view, err
	}
	streamed := map[string][]string{}
	out := make(chan capture.Batch)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	// A source of its own: what this one has sent is not touched.
	reader := &Source{cfg: s.cfg, control: s.control, stream: s.stream, server: sv}
	reader.begin(sv, from.position(), *from)
	start := *from
	go func() {
		r := &run{source: reader, serverID: anyServerID(), from: start, cutMark: token, out: out}
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
				ended := <-done // with the context
				_ = ended
				if now, err := parsePosition(b.Position); err == nil && now.file == from.file {
					from.born = now.born
				}
				return &lessView{View: view, streamed: streamed}, nil
			}
		case err := <-done:
			cancel()
			return view, fmt.Errorf("read what was committed meanwhile: %w", err)
		}
	}
}

// lessView is a view without the rows that the stream brings.
type lessView struct {
	store.View
	streamed map[string][]string // ids by outbox
}

// Unsettled implements store.View.
func (v *lessView) Unsettled(ctx context.Context, q store.Unsettled) ([]store.Item, error) {
	return v.View.Unsettled(ctx, v.less(q))
}

// Pages implements store.View.
func (v *lessView) Pages(ctx context.Context, q store.Unsettled, page int, take func([]store.Item) error) error {
	return v.View.Pages(ctx, v.less(q), page, take)
}

func (v *lessView) less(q store.Unsettled) store.Unsettled {
	held := make([]string, 0, len(q.Held)+len(v.streamed[q.Outbox]))
	q.Held = append(append(held, q.Held...), v.streamed[q.Outbox]...)
	return q
}
