package capture_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// transaction is a transaction of a model log. Its position is its end.
type transaction struct {
	position int
	rows     []string
}

func at(p int) store.Position { return store.Position(strconv.Itoa(p)) }

// modelSource emits a log as real sources do: it starts at the position that Resume returns,
// splits transactions at random and emits positions in between. It loses its connection at
// random, also while a batch waits to be received.
type modelSource struct {
	t      *rapid.T
	log    []transaction
	resume capture.Resume
	runs   int
	cuts   int // number of runs that lose their connection; later runs do not
	took   []capture.Batch
}

func (m *modelSource) Open(context.Context, store.Checkpoint, capture.Tables) (capture.OpenResult, error) {
	return capture.OpenResult{}, nil
}
func (m *modelSource) Acknowledge(store.Position)         {}
func (m *modelSource) Mark(context.Context, string) error { return nil }
func (m *modelSource) Retained(context.Context) (capture.RetainedLog, error) {
	return capture.RetainedLog{}, nil
}
func (m *modelSource) Resume() *capture.Resume { return &m.resume }

func (m *modelSource) Compare(a, b store.Position) int {
	x, _ := strconv.Atoi(string(a))
	y, _ := strconv.Atoi(string(b))
	return x - y
}

var errCut = errors.New("the connection is lost")

func (m *modelSource) Run(_ context.Context, span capture.Span, _ chan<- capture.Batch) error {
	m.runs++
	from, _ := strconv.Atoi(string(m.resume.Start(m, span.From)))
	m.resume.Connected()
	for _, tx := range m.log {
		if tx.position <= from {
			continue
		}
		if tx.position-1 > from && !m.send(capture.Batch{Position: at(tx.position - 1)}, "a position") {
			return errCut
		}
		for rest := tx.rows; ; {
			n := rapid.IntRange(1, len(rest)).Draw(m.t, "split")
			b := capture.Batch{Items: items(rest[:n])}
			if rest = rest[n:]; len(rest) == 0 {
				b.Position = at(tx.position)
				b.Marks = []string{fmt.Sprint("mark-", tx.position)}
			}
			if !m.send(b, "rows") {
				return errCut
			}
			if len(rest) == 0 {
				break
			}
		}
	}
	return nil // end of the model's log
}

// send sends a batch as a source does, with Trim and Sent. It returns false if the
// connection is lost.
func (m *modelSource) send(b capture.Batch, what string) bool {
	cut := m.runs <= m.cuts && rapid.IntRange(0, 9).Draw(m.t, "cut before "+what) == 0
	if !m.resume.Trim(&b) {
		return !cut
	}
	if cut {
		return false // the batch waited and was not received
	}
	m.took = append(m.took, b)
	m.resume.Sent(len(b.Items), b.Position)
	return true
}

func items(ids []string) []store.Item {
	list := make([]store.Item, len(ids))
	for i := range ids {
		list[i].ID = ids[i]
	}
	return list
}

// TestResumeModel checks that a source that is run again and again through Resume emits its
// log once, and each position after the rows below it.
func TestResumeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &modelSource{t: t, cuts: rapid.IntRange(0, 12).Draw(t, "cuts")}
		var want []string
		position := 0
		for i := range rapid.IntRange(1, 8).Draw(t, "transactions") {
			position += 2
			tx := transaction{position: position}
			for j := range rapid.IntRange(1, 6).Draw(t, "rows") {
				tx.rows = append(tx.rows, fmt.Sprintf("%d-%d", i, j))
			}
			m.log = append(m.log, tx)
			want = append(want, tx.rows...)
		}
		for m.Run(t.Context(), capture.Span{}, nil) != nil {
			if rapid.Bool().Draw(t, "another source goes on") {
				m.resume = capture.Resume{}
				m.resume.ResetPartial(m.reached())
			}
		}
		var got, marks []string
		last, done := 0, 0
		for _, b := range m.took {
			for i := range b.Items {
				got = append(got, b.Items[i].ID)
			}
			marks = append(marks, b.Marks...)
			if b.Position == "" {
				continue
			}
			p, _ := strconv.Atoi(string(b.Position))
			if p <= last {
				t.Fatalf("position %d came after %d", p, last)
			}
			last = p
			for done < len(m.log) && m.log[done].position <= p {
				done++
			}
			if rows := rowsUpTo(m.log[:done]); rows != len(got) {
				t.Fatalf("position %d came behind %d rows, it stands for %d", p, len(got), rows)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("the log is\n%q, what came is\n%q", want, got)
		}
		if len(marks) != len(m.log) {
			t.Fatalf("marks %q came for %d transactions", marks, len(m.log))
		}
	})
}

// reached returns the last position that was received and the number of rows after it.
func (m *modelSource) reached() (last store.Position, rows int) {
	for _, b := range m.took {
		rows += len(b.Items)
		if b.Position != "" {
			last, rows = b.Position, 0
		}
	}
	return last, rows
}

func rowsUpTo(log []transaction) int {
	n := 0
	for _, tx := range log {
		n += len(tx.rows)
	}
	return n
}

// scripted is a source whose runs end with the errors of a script.
type scripted struct {
	modelSource
	script []step
}

type step struct {
	sends bool
	err   error
}

func (s *scripted) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	s.resume.Start(s, span.From)
	next := s.script[0]
	s.script = s.script[1:]
	if next.sends {
		s.resume.Connected()
		s.runs++
		out <- capture.Batch{Position: at(s.runs)}
		s.resume.Sent(0, at(s.runs))
	}
	return next.err
}

type losses struct {
	connected int
	waits     []time.Duration
}

func (l *losses) Connected()                            { l.connected++ }
func (l *losses) Disconnected(_ error, w time.Duration) { l.waits = append(l.waits, w) }

func TestFollowWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := &capture.LostError{Reason: "test"}
		src := &scripted{}
		for range 9 {
			src.script = append(src.script, step{err: errCut})
		}
		src.script = append(src.script, step{sends: true, err: errCut}, step{err: errCut}, step{err: lost})
		var seen losses
		out := make(chan capture.Batch, 1)
		began := time.Now()
		if err := capture.Follow(t.Context(), src, "", out, &seen); err != error(lost) {
			t.Fatalf("Follow returned %v", err)
		}
		var total time.Duration
		want := []time.Duration{50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 50, 100}
		for i, w := range seen.waits {
			total += w
			if limit := want[i] * time.Millisecond; w > limit || w < limit*4/5 {
				t.Errorf("wait %d was %s, want at most a fifth less than %s", i, w, limit)
			}
		}
		if len(seen.waits) != len(want) || seen.connected != 1 {
			t.Errorf("%d losses and %d connections were reported, want %d and 1", len(seen.waits), seen.connected, len(want))
		}
		if took := time.Since(began); took != total {
			t.Errorf("it took %s, the waits were %s", took, total)
		}
	})
}

func TestFollowEnds(t *testing.T) {
	for name, final := range map[string]error{
		"lost":      fmt.Errorf("run: %w", &capture.LostError{Reason: "slot gone"}),
		"origin":    fmt.Errorf("run: %w", &capture.OriginError{Reason: "another server"}),
		"setup":     fmt.Errorf("run: %w", &store.SetupError{Problem: "no grant"}),
		"no stream": &capture.NoStreamError{SetupError: store.SetupError{Problem: "wal_level"}},
	} {
		t.Run(name, func(t *testing.T) {
			src := &scripted{script: []step{{err: final}}}
			if err := capture.Follow(t.Context(), src, "", nil, &losses{}); err != final {
				t.Errorf("Follow returned %v", err)
			}
		})
	}
	t.Run("context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
			defer cancel()
			src := &scripted{script: []step{{err: errCut}, {err: errCut}, {err: errCut}, {err: errCut}}}
			if err := capture.Follow(ctx, src, "", nil, &losses{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Follow returned %v", err)
			}
		})
	})
}
