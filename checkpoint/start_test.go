package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// fakeStart is a fake log and its tables for one start.
type fakeStart struct {
	saved   *store.Checkpoint
	resume  bool              // the log is opened where it is asked for
	late    *store.Checkpoint // that the last leader saves before its leadership ends
	opening capture.OpenResult
	rows    map[string]int // by outbox
	payload int            // bytes of each row's payload and group
	group   int

	// read is the number of bytes that Unsettled returned, maxSpilled the bytes of the
	// largest spill.
	read, maxSpilled int64
	opened           store.Checkpoint
	closed           int
	discarded        int
	spilled          []store.Item
	spillErr         error    // error of a spill
	steps            []string // the calls in order
	epochs           int

	// keeps are the calls of Keep before the snapshot: a position, "" for the middle of a
	// transaction, and a number of rows. keepsAt is the position of the one behind it.
	keeps   []keptPart
	keepsAt store.Position
}

type keptPart struct {
	position store.Position
	rows     int
}

func (s *fakeStart) LoadCheckpoint(context.Context) (store.Checkpoint, error) {
	if s.saved == nil {
		return store.Checkpoint{}, fmt.Errorf("load: %w", store.ErrNoCheckpoint)
	}
	return *s.saved, nil
}

func (s *fakeStart) AcquireLeadership(context.Context) (store.Epoch, error) {
	s.epochs++
	s.steps = append(s.steps, "acquire")
	if s.late != nil {
		s.saved, s.late = s.late, nil
	}
	return store.Epoch(s.epochs), nil
}

func (s *fakeStart) Leader(context.Context) (store.Leader, error) {
	return store.Leader{Epoch: store.Epoch(s.epochs)}, nil
}

func (s *fakeStart) SaveCheckpoint(_ context.Context, e store.Epoch, cp store.Checkpoint) error {
	s.saved = &cp
	s.steps = append(s.steps, fmt.Sprintf("save %q as %d", cp.Position, e))
	return nil
}

func (s *fakeStart) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	s.opened = at
	o := s.opening
	if s.resume {
		o.From = at.Position
	}
	var err error
	if o.SnapshotReason != "" {
		if len(s.keeps) == 0 {
			err = tables.ClearCheckpoint(ctx)
		}
		for _, part := range s.keeps {
			if err = tables.Keep(ctx, store.Checkpoint{Origin: "kept", Position: part.position}, make([]store.Item, part.rows)); err != nil {
				break
			}
		}
		if err != nil {
			return o, err
		}
		s.steps = append(s.steps, "snapshot")
		if o.View, err = tables.View(ctx, "snapshot"); err != nil {
			return o, err
		}
		if s.keepsAt != "" {
			err = tables.Keep(ctx, store.Checkpoint{Origin: "kept", Position: s.keepsAt}, nil)
		}
		o.Discard = func(context.Context) error { s.discarded++; return nil }
	}
	return o, err
}

func (s *fakeStart) View(context.Context, string) (store.View, error) { return s, nil }
func (s *fakeStart) Position() store.Position                         { return "" }
func (s *fakeStart) Close()                                           { s.closed++ }

func (s *fakeStart) Unsettled(_ context.Context, q store.UnsettledQuery) ([]store.Item, error) {
	var items []store.Item
	for i := 0; i < s.rows[q.Outbox] && (i == 0 || !q.MayHaveMore(items)); i++ {
		items = append(items, sizedItem(q, i, s.payload, s.group))
	}
	s.read += store.BytesOf(items)
	return items, nil
}

// sizedItem returns a row with a payload and a group of some bytes, as a view reads it.
func sizedItem(q store.UnsettledQuery, i, payload, group int) store.Item {
	it := store.Item{Ref: store.Ref{Outbox: q.Outbox, ID: fmt.Sprint(i)}, PayloadSize: payload}
	if it.Group = store.GroupOf(strings.Repeat("g", group)); payload <= q.MaxInlinePayload() {
		it.Payload = make([]byte, payload)
	}
	return it
}

func (s *fakeStart) Pages(ctx context.Context, q store.UnsettledQuery, page int, take func([]store.Item) error) error {
	bytes, read := q.MaxBytes, s.read
	q.MaxBytes = 0
	items, err := s.Unsettled(ctx, q)
	s.read = read
	for len(items) > 0 && err == nil {
		n := 1
		for n < min(page, len(items)) && (bytes == 0 || store.BytesOf(items[:n]) < bytes) {
			n++
		}
		err = take(items[:n])
		items = items[n:]
	}
	return err
}

func (s *fakeStart) Delivered(context.Context, store.DeliveredQuery, int, func([]store.Item) error) (int, error) {
	return 0, nil
}

func (s *fakeStart) Spill(_ context.Context, _ store.Epoch, items []store.Item) error {
	s.spilled = append(s.spilled, items...)
	s.maxSpilled = max(s.maxSpilled, store.BytesOf(items))
	s.steps = append(s.steps, fmt.Sprint("spill ", len(items)))
	return s.spillErr
}

func (s *fakeStart) DeleteSpilledAfter(_ context.Context, e store.Epoch, after store.Checkpoint) (int, error) {
	s.steps = append(s.steps, fmt.Sprintf("delete spilled after %d as %d", after.Seq, e))
	return 0, nil
}

func (s *fakeStart) DeleteSpilled(context.Context, store.Epoch, []store.SpilledRef) error { return nil }
func (s *fakeStart) SpilledLanes(context.Context, func(store.SpilledLane)) error          { return nil }
func (s *fakeStart) ReadSpilled(context.Context, []store.SpilledRange, int) ([][]store.Item, error) {
	return nil, nil
}

var twoOutboxes = []store.Outbox{{Name: "a"}, {Name: "b"}}

func TestStartResumesAtCheckpoint(t *testing.T) {
	s := &fakeStart{
		saved:   &store.Checkpoint{Origin: "o", Position: "7", Seq: 5},
		opening: capture.OpenResult{Origin: "o", From: "7"},
	}

	b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 10}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := *s.saved; !b.Watermark.Equal(want) || !s.opened.Equal(want) || b.From != "7" || len(b.Backlog) > 0 || b.SnapshotReason != "" {
		t.Errorf("got %+v, opened at %+v", b, s.opened)
	}
	if fmt.Sprint(s.steps) != "[acquire delete spilled after 5 as 1]" || b.Epoch != 1 {
		t.Errorf("got calls %v, epoch %d", s.steps, b.Epoch)
	}
}

// TestStartAtTheLastCheckpoint: the last leader saves a checkpoint after it was loaded. Behind the older
// one, Start would delete rows that the last leader spilled before it saved. If this leader died
// before it saved one too, nobody would read those rows again.
func TestStartAtTheLastCheckpoint(t *testing.T) {
	s := &fakeStart{
		saved:   &store.Checkpoint{Origin: "o", Position: "7", Seq: 5},
		late:    &store.Checkpoint{Origin: "o", Position: "8", Seq: 6},
		opening: capture.OpenResult{Origin: "o"},
	}
	s.resume = true
	b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 10}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !b.Watermark.Equal(*s.saved) || b.From != "8" || fmt.Sprint(s.steps) != "[acquire acquire delete spilled after 6 as 2]" {
		t.Errorf("got %+v, calls %v", b, s.steps)
	}
}

// TestStartClearsCheckpointBeforeSnapshot: a start that crashes between the snapshot
// and the settling of its backlog is followed by another snapshot, because the
// checkpoint was cleared first.
func TestStartClearsCheckpointBeforeSnapshot(t *testing.T) {
	s := &fakeStart{
		saved:   &store.Checkpoint{Origin: "o", Position: "7", Seq: 5},
		opening: capture.OpenResult{Origin: "o", From: "9", SnapshotReason: "the slot is gone"},
		rows:    map[string]int{"a": 1},
	}

	b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := `[acquire save "" as 1 snapshot]`; fmt.Sprint(s.steps) != want {
		t.Errorf("the start did %v, want %s", s.steps, want)
	}
	if b.Watermark.Position != "" || b.Watermark.Seq != 5 || b.Epoch != 1 {
		t.Errorf("got %+v", b)
	}
	if _, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, nil); err != nil {
		t.Fatal(err)
	}
	if s.opened.Position != "" {
		t.Errorf("next start: got log position %+v", s.opened)
	}
}

// TestStartTakesSnapshot: nothing may be saved until the backlog has settled, so the
// watermark has no position.
func TestStartTakesSnapshot(t *testing.T) {
	s := &fakeStart{
		opening: capture.OpenResult{Origin: "o", From: "9", SnapshotReason: "there is no checkpoint yet"},
		rows:    map[string]int{"a": 2, "b": 3},
	}

	b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Backlog) != 5 || b.Backlog[2].Outbox != "b" || b.From != "9" || b.SnapshotReason == "" {
		t.Errorf("got %+v", b)
	}
	if !b.Watermark.Equal(store.Checkpoint{Origin: "o"}) {
		t.Errorf("got watermark %+v", b.Watermark)
	}
	if s.closed != 1 || s.discarded != 0 {
		t.Errorf("view closed %d times, snapshot discarded %d times", s.closed, s.discarded)
	}
}

// TestStartSpillsLargeBacklog: rows that were spilled before the
// snapshot are in no log, so they stay.
func TestStartSpillsLargeBacklog(t *testing.T) {
	s := &fakeStart{
		opening: capture.OpenResult{Origin: "o", From: "9", SnapshotReason: "there is no checkpoint yet"},
		rows:    map[string]int{"a": 3, "b": 3},
	}

	b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := `[acquire save "" as 1 snapshot spill 3 spill 3]`; fmt.Sprint(s.steps) != want {
		t.Errorf("the start did %v, want %s", s.steps, want)
	}
	if len(b.Backlog) > 0 || b.Spilled != 6 || b.Watermark.Position != "" {
		t.Errorf("got %+v", b)
	}

	for i, it := range s.spilled {
		if it.Seq != store.NewSeq(1, int64(i+1)) {
			t.Errorf("row %d is spilled as seq %d", i, it.Seq)
		}
	}

	if s.closed != 1 || s.discarded != 0 {
		t.Errorf("view closed %d times, snapshot discarded %d times", s.closed, s.discarded)
	}
}

// TestStartKeepsRows: rows that the source keeps are spilled behind the checkpoint, whose seq
// follows them, and before the backlog. The rows that an earlier start spilled are deleted once.
func TestStartKeepsRows(t *testing.T) {
	for name, c := range map[string]struct {
		backlog int
		steps   string
		spilled int64
	}{
		"a small backlog": {2, "", 6},
		"a large backlog": {3, " spill 3 spill 3", 12},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fakeStart{
				saved:   &store.Checkpoint{Origin: "o", Position: "7", Seq: 5},
				opening: capture.OpenResult{Origin: "o2", From: "9", SnapshotReason: "an outbox was added", Kept: []string{"a"}},
				rows:    map[string]int{"a": c.backlog, "b": c.backlog},
				keeps:   []keptPart{{"7", 0}, {"8", 2}, {"", 3}, {"9", 1}},
			}
			b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := `[acquire delete spilled after 5 as 1 save "7" as 1 spill 2 save "8" as 1 spill 3 spill 1 save "9" as 1 snapshot` + c.steps + "]"
			if fmt.Sprint(s.steps) != want {
				t.Errorf("the start did %v, want %s", s.steps, want)
			}
			for i, it := range s.spilled {
				if it.Seq != store.NewSeq(1, int64(i+1)) {
					t.Errorf("row %d is spilled as seq %d", i, it.Seq)
				}
			}
			if b.Spilled != c.spilled || int64(len(b.Backlog))+b.Spilled != int64(6+2*c.backlog) || fmt.Sprint(b.Kept) != "[a]" || b.Watermark.Position != "" {
				t.Errorf("got %+v", b)
			}
			if kept := (store.Checkpoint{Origin: "kept", Position: "9", Seq: store.NewSeq(1, 6)}); !s.saved.Equal(kept) {
				t.Errorf("got checkpoint %+v, want %+v", *s.saved, kept)
			}
		})
	}
}

// TestStartSavesNewLog: without an old log to read, the checkpoint has the position of the new one.
// No log brings the spilled rows again, so none is deleted, nor by the next start.
func TestStartSavesNewLog(t *testing.T) {
	for name, c := range map[string]struct {
		saved *store.Checkpoint
		seq   store.Seq
		first bool
	}{
		"the first start":    {nil, 0, true},
		"a lost log":         {&store.Checkpoint{Origin: "o", Position: "7", Seq: 5}, store.NewSeq(1, 0), false},
		"an unfinished one":  {&store.Checkpoint{Seq: 5}, store.NewSeq(1, 0), false},
		"no row so far":      {&store.Checkpoint{Origin: "o", Position: "7"}, store.NewSeq(1, 0), true},
		"no row, unfinished": {&store.Checkpoint{}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fakeStart{
				saved:   c.saved,
				opening: capture.OpenResult{Origin: "o2", From: "9", SnapshotReason: "the slot is gone"},
				rows:    map[string]int{"a": 3, "b": 3},
				keepsAt: "9",
			}
			b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := `[acquire save "" as 1 snapshot save "9" as 1 spill 3 spill 3]`; fmt.Sprint(s.steps) != want {
				t.Errorf("the start did %v, want %s", s.steps, want)
			}
			if want := (store.Checkpoint{Origin: "kept", Position: "9", Seq: c.seq}); !s.saved.Equal(want) || !b.Saved.Equal(want) {
				t.Errorf("got checkpoint %+v, saved %+v, want %+v", *s.saved, b.Saved, want)
			}
			if b.IsFirst() != c.first || b.Watermark.Position != "" || b.Spilled != 6 {
				t.Errorf("got %+v", b)
			}
		})
	}
}

// TestStartAfterReadableLog: a log that lacks rows of the tables is opened at the checkpoint,
// from which the source keeps rows.
func TestStartAfterReadableLog(t *testing.T) {
	s := &fakeStart{
		saved:   &store.Checkpoint{Origin: "o", Position: "7", Seq: 5},
		opening: capture.OpenResult{Origin: "o", From: "9", SnapshotReason: "changed"},
	}
	b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, &capture.LostError{Reason: "changed", Readable: true})
	if want := (store.Checkpoint{Origin: "o", Position: "7", Seq: 5}); err != nil || !s.opened.Equal(want) || b.SnapshotReason != "changed" {
		t.Errorf("opened at %+v, got %+v, %v", s.opened, b, err)
	}
}

func TestStartDiscardsSnapshotIfSpillFails(t *testing.T) {
	s := &fakeStart{
		opening: capture.OpenResult{Origin: "o", From: "9", SnapshotReason: "there is no checkpoint yet"},
		rows:    map[string]int{"a": 6}, spillErr: errors.New("the disk is full"),
	}
	if _, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, nil); !errors.Is(err, s.spillErr) {
		t.Fatalf("%v", err)
	}
	if s.closed != 1 || s.discarded != 1 {
		t.Errorf("view closed %d times, snapshot discarded %d times", s.closed, s.discarded)
	}
}

func TestStartAfterLostLog(t *testing.T) {
	s := &fakeStart{
		saved:   &store.Checkpoint{Origin: "o", Position: "7", Seq: 5},
		opening: capture.OpenResult{Origin: "o", From: "9", SnapshotReason: "there is no checkpoint yet"},
	}
	if _, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 5}, &capture.LostError{Reason: "dropped"}); err != nil {
		t.Fatal(err)
	}
	if want := (store.Checkpoint{Seq: 5}); !s.opened.Equal(want) {
		t.Errorf("got log position %+v", s.opened)
	}
}

// TestStartKeepsWithinBufferBytes: a start reads at most the bytes of the
// buffer and spills no more at a time, however large the payloads and groups are.
// Rows whose payload alone is too large are taken without it.
func TestStartKeepsWithinBufferBytes(t *testing.T) {
	const most, slack = 10_000, 1100
	for name, c := range map[string]struct {
		rows, payload, group int
		payloads             bool
		spilled              int64
	}{
		"payloads that fit":        {rows: 50, payload: 90, payloads: true},
		"payloads that do not fit": {rows: 50, payload: 1 << 20},
		"groups that do not fit":   {rows: 50, payload: 1 << 20, group: 1000, spilled: 100},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fakeStart{
				opening: capture.OpenResult{Origin: "o", From: "9", SnapshotReason: "there is no checkpoint yet"},
				rows:    map[string]int{"a": c.rows, "b": c.rows}, payload: c.payload, group: c.group,
			}
			b, err := Start(t.Context(), s, s, twoOutboxes, store.ReadLimit{Rows: 100, Bytes: most}, nil)
			if err != nil || b.Spilled != c.spilled || len(b.Backlog)+len(s.spilled) != 2*c.rows {
				t.Fatalf("%d rows and %d spilled, %v", len(b.Backlog), b.Spilled, err)
			}
			if s.read > most+slack || s.maxSpilled > most+slack {
				t.Errorf("got %d bytes read and %d spilled at once, want at most %d", s.read, s.maxSpilled, most)
			}
			for _, it := range b.Backlog {
				if (it.Payload != nil) != c.payloads {
					t.Fatalf("row %s has %d bytes of payload", it.ID, len(it.Payload))
				}
			}
		})
	}
}
