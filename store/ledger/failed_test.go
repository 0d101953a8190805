package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

// fakeTables are the tables of two outboxes that cannot store FAILED: kept has a state, logged
// has none. The log keeps the rows of logged.
type fakeTables struct {
	store.Tables
	ledger  *ledger.Ledger
	backend *memory.Backend
	state   map[store.Ref]store.Status // of rows of kept that exist
	lost    bool                       // the answer of the next write is lost
}

var errLost = errors.New("answer lost")

// write runs a transaction of the leader. Its answer may be lost after the commit.
func (f *fakeTables) write(ctx context.Context, epoch store.Epoch, do func(context.Context, ledger.Tx) error) error {
	err := f.backend.Update(ctx, epoch, ledger.Full, do)
	if f.lost && err == nil {
		f.lost = false
		return errLost
	}
	return err
}

func (f *fakeTables) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	return f.backend.AcquireLeadership(ctx)
}

func (f *fakeTables) Claim(_ context.Context, _ store.Epoch, _ time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	answers := make([]store.ClaimAnswer, len(rows))
	for i, row := range rows {
		answers[i].Result = store.Claimed
		switch state, exists := f.state[row.Ref]; {
		case row.Outbox != "kept":
		case !exists:
			answers[i].Result = store.Gone
		case state.Settled():
			answers[i].Result = store.AlreadySettled
		}
	}
	return answers, nil
}

func (f *fakeTables) ReadSettled(_ context.Context, rows []store.ClaimRow) ([]bool, error) {
	settled := make([]bool, len(rows))
	for i, row := range rows {
		state, exists := f.state[row.Ref]
		settled[i] = row.Outbox == "kept" && (!exists || state.Settled())
	}
	return settled, nil
}

func (f *fakeTables) Settle(ctx context.Context, epoch store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	results := make([]store.SettleResult, len(outcomes))
	return results, f.write(ctx, epoch, func(ctx context.Context, tx ledger.Tx) error {
		for i, o := range outcomes {
			state, exists := f.state[o.Ref]
			switch results[i] = store.Written; {
			case o.Outbox != "kept":
			case !exists:
				results[i] = store.WasGone
			case state.Settled():
				results[i] = store.WasSettled
			case o.Status == store.Completed:
				f.state[o.Ref] = store.Completed
			}
		}
		return f.ledger.AfterSettle(ctx, tx, outcomes, results, func(_ context.Context, rows []store.Ref) ([]bool, error) {
			return make([]bool, len(rows)), nil
		})
	})
}

// resolve calls do for the unsettled rows that a filter names.
func (f *fakeTables) resolve(ctx context.Context, epoch store.Epoch, filter store.DeadLetterFilter, do func(store.Ref)) (refs []store.Ref, err error) {
	err = f.write(ctx, epoch, func(ctx context.Context, tx ledger.Tx) error {
		refs = nil
		for _, id := range filter.IDs {
			ref := store.Ref{Outbox: filter.Outbox, ID: id}
			if state, exists := f.state[ref]; exists && !state.Settled() {
				do(ref)
				refs = append(refs, ref)
			}
		}
		return f.ledger.AfterResolve(ctx, tx, refs...)
	})
	return refs, err
}

func (f *fakeTables) Requeue(ctx context.Context, epoch store.Epoch, filter store.DeadLetterFilter, _ int) (items []store.Item, err error) {
	refs, err := f.resolve(ctx, epoch, filter, func(store.Ref) {})
	for _, ref := range refs {
		items = append(items, store.Item{Ref: ref})
	}
	return items, err
}

func (f *fakeTables) Discard(ctx context.Context, epoch store.Epoch, filter store.DeadLetterFilter, _ int) ([]store.Ref, error) {
	return f.resolve(ctx, epoch, filter, func(ref store.Ref) { delete(f.state, ref) })
}

func (f *fakeTables) View(context.Context, string) (store.View, error) { return fakeView{f: f}, nil }

type fakeView struct {
	store.View
	f *fakeTables
}

func (v fakeView) Unsettled(_ context.Context, q store.UnsettledQuery) (items []store.Item, err error) {
	for ref, state := range v.f.state {
		if ref.Outbox == q.Outbox && !state.Settled() && !slices.Contains(q.ExcludeIDs, ref.ID) {
			items = append(items, store.Item{Ref: ref})
		}
	}
	return items, nil
}

// failedModel is the reference model of the FAILED rows: the state of each row, and its place
// among the spilled rows.
type failedModel struct {
	*fakeTables
	t     *rapid.T
	db    *memory.Database
	store ledger.Store
	epoch store.Epoch

	rows    map[store.Ref]store.Status // 0: deleted from the table
	spilled map[store.Ref]bool
}

func (m *failedModel) lead() {
	boxes := []store.Outbox{
		{Name: "kept", Table: "kept", Layout: store.Layout{Name: "kept", State: store.StateBoolean, Columns: store.Columns{Status: "sent"}}},
		{Name: "logged", Table: "logged", Layout: store.Layout{Name: "logged", State: store.StateNone}},
		{Name: "plain", Table: "plain", Layout: store.FlowCatalyst()},
	}
	m.backend = m.db.Backend("model")
	m.ledger = ledger.New(ledger.Config{
		Outboxes: boxes, Records: m.backend, Spill: m.backend, Replay: m.backend, BatchRows: 3,
		AreFailed: func(context.Context, []store.Ref) ([]bool, error) { return nil, errors.New("no row is asked for") },
	})
	m.store = ledger.Store{Tables: m.fakeTables, Ledger: m.ledger}
	var err error
	if m.epoch, err = m.store.AcquireLeadership(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

func (m *failedModel) item(ref store.Ref) store.Item {
	var n int64
	_, _ = fmt.Sscan(ref.ID, &n)
	return store.Item{
		Ref: ref, Kind: "K", Group: store.GroupOf(fmt.Sprint(n % 2)), Seq: store.Seq(n), Payload: []byte("payload " + ref.ID), PayloadSize: 8 + len(ref.ID),
		Attributes: store.Attributes{{Name: "type", Value: "T" + ref.ID}},
	}
}

func (m *failedModel) with(states ...store.Status) (refs []store.Ref) {
	for _, ref := range slices.SortedFunc(maps.Keys(m.rows), func(a, b store.Ref) int { return cmpRefs(a, b) }) {
		if slices.Contains(states, m.rows[ref]) {
			refs = append(refs, ref)
		}
	}
	return refs
}

func cmpRefs(a, b store.Ref) int {
	if a.Outbox != b.Outbox {
		return len(a.Outbox) - len(b.Outbox)
	}
	return slices.Compare([]byte(a.ID), []byte(b.ID))
}

// some draws a row in one of the states.
func (m *failedModel) some(t *rapid.T, states ...store.Status) (ref store.Ref, ok bool) {
	refs := m.with(states...)
	if len(refs) == 0 {
		return ref, false
	}
	return rapid.SampledFrom(refs).Draw(t, "row"), true
}

func (m *failedModel) insert(t *rapid.T) {
	ref := store.Ref{Outbox: rapid.SampledFrom([]string{"kept", "logged"}).Draw(t, "outbox"), ID: fmt.Sprint(len(m.rows) + 1)}
	m.rows[ref] = store.Pending
	if ref.Outbox == "kept" {
		m.state[ref] = store.Pending
	}
	if rapid.Bool().Draw(t, "spill") {
		if err := m.store.Spill(t.Context(), m.epoch, []store.Item{m.item(ref)}); err != nil {
			t.Fatal(err)
		}
		m.spilled[ref] = true
	}
}

// call repeats a call until its answer arrives.
func (m *failedModel) call(t *rapid.T, do func() error) {
	m.lost = rapid.Bool().Draw(t, "lost")
	err := do()
	if errors.Is(err, errLost) {
		err = do()
	}
	if err != nil {
		t.Fatal(err)
	}
	m.lost = false
}

// settle writes an outcome of a row, also of a FAILED one.
func (m *failedModel) settle(t *rapid.T) {
	ref, ok := m.some(t, store.Pending, store.Failed, 0)
	if !ok {
		return
	}
	status := rapid.SampledFrom([]store.Status{store.Completed, store.Failed, store.Pending}).Draw(t, "status")
	row := m.item(ref)
	o := store.Outcome{Ref: ref, Status: status, RetryCount: 3, Error: "e", At: time.Unix(int64(row.Seq), 0), Row: &row}
	if m.spilled[ref] {
		o.SpilledSeq = row.Seq
	}
	m.call(t, func() error {
		_, err := m.store.Settle(t.Context(), m.epoch, []store.Outcome{o})
		return err
	})
	if status.Settled() {
		delete(m.spilled, ref)
	}
	if m.rows[ref] == store.Pending {
		m.rows[ref] = status
	} else if m.rows[ref] == 0 && ref.Outbox == "logged" {
		m.rows[ref] = status
	}
}

// interfere changes a row of the table as another program does.
func (m *failedModel) interfere(t *rapid.T) {
	ref, ok := m.some(t, store.Pending)
	if !ok || ref.Outbox != "kept" || m.spilled[ref] {
		return
	}
	delete(m.state, ref)
	m.rows[ref] = 0
}

func (m *failedModel) requeue(t *rapid.T) {
	ref, ok := m.some(t, store.Failed)
	if !ok {
		return
	}
	_, exists := m.state[ref]
	m.call(t, func() error {
		items, err := m.store.Requeue(t.Context(), m.epoch, store.DeadLetterFilter{Outbox: ref.Outbox, IDs: []string{ref.ID}}, 5)
		want := m.item(ref)
		if err == nil && len(items) == 1 && ref.Outbox == "logged" && (items[0].Seq != want.Seq || string(items[0].Payload) != string(want.Payload) || !slices.Equal(items[0].Attributes, want.Attributes)) {
			t.Fatalf("requeued %+v, want %+v", items[0], want)
		}
		return err
	})
	switch {
	case ref.Outbox == "logged":
		m.rows[ref], m.spilled[ref] = store.Pending, true
	case exists:
		m.rows[ref] = store.Pending
	default:
		m.rows[ref] = 0
	}
}

func (m *failedModel) discard(t *rapid.T) {
	ref, ok := m.some(t, store.Failed)
	if !ok {
		return
	}
	m.call(t, func() error {
		_, err := m.store.Discard(t.Context(), m.epoch, store.DeadLetterFilter{Outbox: ref.Outbox, IDs: []string{ref.ID}}, 5)
		return err
	})
	m.rows[ref] = 0
	if ref.Outbox == "logged" { // another row, as far as the records know
		delete(m.rows, ref)
		m.rows[store.Ref{Outbox: "logged", ID: ref.ID + "0000"}] = store.Completed
	}
}

func (m *failedModel) check(t *rapid.T) {
	failed := m.with(store.Failed)
	for _, box := range []string{"kept", "logged"} {
		var want, got []string
		for _, ref := range failed {
			if ref.Outbox == box {
				want = append(want, ref.ID)
			}
		}
		letters, err := m.store.Failed(t.Context(), store.DeadLetterFilter{Outbox: box}, 1000, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range letters {
			got = append(got, d.ID)
		}
		slices.Sort(got)
		n, err := m.store.CountFailed(t.Context(), store.DeadLetterFilter{Outbox: box})
		if slices.Sort(want); !slices.Equal(got, want) || n != len(want) || err != nil {
			t.Fatalf("dead letters of %s are %q, counted %d, %v; want %q", box, got, n, err, want)
		}
	}

	var rows []store.ClaimRow
	for ref := range m.rows {
		rows = append(rows, store.ClaimRow{Ref: ref})
	}
	answers, err := m.store.Claim(t.Context(), m.epoch, time.Now(), rows)
	if err != nil {
		t.Fatal(err)
	}
	settled, err := m.store.ReadSettled(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		want := m.rows[rows[i].Ref] == store.Failed
		if want != (a.Result == store.AlreadySettled) && rows[i].Outbox == "logged" || want && (a.Result != store.AlreadySettled || !settled[i]) {
			t.Fatalf("row %v is %s, settled: %t; want FAILED: %t", rows[i].Ref, a.Result, settled[i], want)
		}
	}
	view, _ := m.store.View(t.Context(), "")
	shown, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: "kept", Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range shown {
		if m.rows[it.Ref] != store.Pending {
			t.Fatalf("a view shows row %v, in state %s", it.Ref, m.rows[it.Ref])
		}
	}
	m.checkQueues(t)
}

// checkQueues: the spilled rows are the expected ones, and the content of each FAILED row of
// the log is kept, and no other.
func (m *failedModel) checkQueues(t *rapid.T) {
	for queue, want := range map[string]func(store.Ref) bool{
		ledger.SpilledQueue: func(ref store.Ref) bool { return m.spilled[ref] },
		"failed.rows":       func(ref store.Ref) bool { return ref.Outbox == "logged" && m.rows[ref] == store.Failed },
	} {
		var got []store.Item
		err := m.backend.View(t.Context(), func(ctx context.Context, r ledger.Reader) (err error) {
			got, err = r.Scan(ctx, ledger.Scan{Queue: queue, Limit: 1000})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ref := range m.rows {
			if want(ref) {
				n++
			}
		}
		for _, it := range got {
			if !want(it.Ref) {
				t.Fatalf("queue %q has row %v", queue, it.Ref)
			}
		}
		if len(got) != n {
			t.Fatalf("queue %q has %d rows, want %d", queue, len(got), n)
		}
	}
}

// TestFailedRecordsAgainstModel: whatever answers are lost and whoever leads, a row is FAILED
// until it is requeued or discarded, and no row is lost or FAILED twice.
func TestFailedRecordsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &failedModel{
			fakeTables: &fakeTables{state: map[store.Ref]store.Status{}}, t: t, db: memory.New(),
			rows: map[store.Ref]store.Status{}, spilled: map[store.Ref]bool{},
		}
		m.lead()
		t.Repeat(map[string]func(*rapid.T){
			"insert": m.insert, "insert more": m.insert, "settle": m.settle, "settle more": m.settle,
			"interfere": m.interfere, "requeue": m.requeue, "discard": m.discard,
			"lead": func(*rapid.T) { m.lead() },
			"":     m.check,
		})
	})
}
