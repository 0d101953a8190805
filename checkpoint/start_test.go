package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// start is a log and its tables for one start.
type start struct {
	saved     *store.Checkpoint
	opening   capture.Opening
	rows      map[string]int // by outbox
	opened    store.Checkpoint
	closed    int
	discarded int
}

func (s *start) LoadCheckpoint(context.Context) (store.Checkpoint, error) {
	if s.saved == nil {
		return store.Checkpoint{}, fmt.Errorf("load: %w", store.ErrNoCheckpoint)
	}
	return *s.saved, nil
}

func (s *start) Open(ctx context.Context, at store.Checkpoint, views store.Viewer) (capture.Opening, error) {
	s.opened = at
	o := s.opening
	if o.Why != "" {
		var err error
		if o.View, err = views.View(ctx, "snapshot"); err != nil {
			return o, err
		}
		o.Discard = func(context.Context) error { s.discarded++; return nil }
	}
	return o, nil
}

func (s *start) View(context.Context, string) (store.View, error) { return s, nil }
func (s *start) Position() store.Position                         { return "" }
func (s *start) Close()                                           { s.closed++ }

func (s *start) Unsettled(_ context.Context, q store.Unsettled) ([]store.Item, error) {
	items := make([]store.Item, min(q.Limit, s.rows[q.Outbox]))
	for i := range items {
		items[i].Ref = store.Ref{Outbox: q.Outbox, ID: fmt.Sprint(i)}
	}
	return items, nil
}

var twoOutboxes = []store.Outbox{{Name: "a"}, {Name: "b"}}

func TestStartGoesOnAtTheCheckpoint(t *testing.T) {
	s := &start{
		saved:   &store.Checkpoint{Origin: "o", Position: "7", Seq: 5},
		opening: capture.Opening{Origin: "o", From: "7"},
	}
	b, err := Start(t.Context(), s, s, twoOutboxes, 10)
	if err != nil {
		t.Fatal(err)
	}
	if want := *s.saved; b.Frontier != want || s.opened != want || b.From != "7" || len(b.Backlog) > 0 || b.Why != "" {
		t.Errorf("%+v, opened at %+v", b, s.opened)
	}
}

// Until the backlog has settled nothing may be saved, so the watermark has no
// position.
func TestStartMakesACut(t *testing.T) {
	s := &start{
		opening: capture.Opening{Origin: "o", From: "9", Why: "there is no checkpoint yet"},
		rows:    map[string]int{"a": 2, "b": 3},
	}
	b, err := Start(t.Context(), s, s, twoOutboxes, 5)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Backlog) != 5 || b.Backlog[2].Outbox != "b" || b.From != "9" || b.Why == "" {
		t.Errorf("%+v", b)
	}
	if b.Frontier != (store.Checkpoint{Origin: "o"}) {
		t.Errorf("the watermark stands at %+v", b.Frontier)
	}
	if s.closed != 1 || s.discarded != 0 {
		t.Errorf("view closed %d times, cut discarded %d times", s.closed, s.discarded)
	}
}

func TestStartRefusesABacklogLargerThanTheBuffer(t *testing.T) {
	s := &start{
		opening: capture.Opening{Origin: "o", From: "9", Why: "there is no checkpoint yet"},
		rows:    map[string]int{"a": 3, "b": 3},
	}
	_, err := Start(t.Context(), s, s, twoOutboxes, 5)
	var setup *store.SetupError
	if !errors.As(err, &setup) {
		t.Fatalf("%v", err)
	}
	if s.closed != 1 || s.discarded != 1 {
		t.Errorf("view closed %d times, cut discarded %d times", s.closed, s.discarded)
	}
}
