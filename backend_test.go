package sluicebox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBackend is a store, a sink and an observer in fake time. It has only the methods that
// a dispatcher without operator actions needs.
type fakeBackend struct {
	dispatch.Store

	mu             sync.Mutex
	latency        time.Duration // of a statement
	answer         func(ids []string) sink.Result
	refusesOutcome bool            // the table refuses every outcome
	lockedTables   map[string]bool // outboxes whose table is locked

	sent        []string     // ids, in order
	completed   []string     // ids, in order
	rowsSpilled int          // as observed
	spilled     []store.Item // by seq
}

func newFakeBackend() *fakeBackend {
	return &fakeBackend{latency: time.Millisecond, answer: always(sink.Delivered)}
}

// options are those of a dispatcher of the backend.
func (k *fakeBackend) options(epoch store.Epoch, spill bool, freed chan<- struct{}) dispatch.Options {
	return dispatch.Options{Store: k, Sink: k, Observer: k, Epoch: epoch, DrainTimeout: time.Second, Spill: spill, Freed: freed}
}

// always answers every request with a class.
func always(c sink.Class) func([]string) sink.Result {
	return func([]string) sink.Result {
		return sink.Result{Outcome: sink.Outcome{Class: c, Detail: c.String()}}
	}
}

func (k *fakeBackend) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *fakeBackend) isLocked(outbox string) (locked bool) {
	k.set(func() { locked = k.lockedTables[outbox] })
	return locked
}

// count returns the number of rows sent, and of rows with that prefix which are COMPLETED.
func (k *fakeBackend) count(prefix byte) (sent, completed int) {
	k.set(func() {
		sent = len(k.sent)
		seen := map[string]bool{}
		for _, id := range k.completed {
			if id[0] == prefix {
				seen[id] = true
			}
		}
		completed = len(seen)
	})
	return sent, completed
}

func (k *fakeBackend) Claim(ctx context.Context, _ store.Epoch, _ time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	if slices.ContainsFunc(rows, func(r store.ClaimRow) bool { return k.isLocked(r.Outbox) }) {
		<-time.After(500 * time.Millisecond) // as long as a real store waits
	}
	if err := backoff.Sleep(ctx, k.latency); err != nil {
		return nil, err
	}
	answers := make([]store.ClaimAnswer, len(rows))
	for i := range rows {
		if answers[i].Result = store.Claimed; k.isLocked(rows[i].Outbox) {
			answers[i].Result = store.TableLocked
		}
	}
	return answers, nil
}

func (k *fakeBackend) Settle(ctx context.Context, _ store.Epoch, outcomes []store.Outcome) ([]store.SettleResult, error) {
	if err := backoff.Sleep(ctx, k.latency); err != nil {
		return nil, err
	}
	results := make([]store.SettleResult, len(outcomes))
	var gone []store.SpilledRef
	for i := range outcomes {
		o, locked := &outcomes[i], k.isLocked(outcomes[i].Outbox)
		if k.refusesOutcome {
			return nil, &store.RefusedError{Err: errors.New("a trigger objects to " + o.ID)}
		}
		if results[i] = store.Written; locked {
			results[i] = store.TableWasLocked
			continue
		}
		if o.Status == store.Completed {
			k.set(func() { k.completed = append(k.completed, o.ID) })
			gone = append(gone, store.SpilledRef{Ref: o.Ref, Seq: o.SpilledSeq})
		}
	}
	return results, k.DeleteSpilled(context.Background(), 1, gone)
}

// AwaitTable waits as long as a real store.
func (k *fakeBackend) AwaitTable(ctx context.Context, outbox string) error {
	for range 100 {
		if !k.isLocked(outbox) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return &store.OutboxLockedError{Outbox: outbox}
}

func (k *fakeBackend) Spill(_ context.Context, _ store.Epoch, rows []store.Item) error {
	k.set(func() {
		for _, it := range rows {
			at, found := slices.BinarySearchFunc(k.spilled, it, func(a, b store.Item) int { return cmp.Compare(a.Seq, b.Seq) })
			if it.Payload = nil; !found {
				k.spilled = slices.Insert(k.spilled, at, it)
			}
		}
	})
	return nil
}

func (k *fakeBackend) DeleteSpilled(_ context.Context, _ store.Epoch, rows []store.SpilledRef) error {
	gone := make(map[store.SpilledRef]bool, len(rows))
	for _, ref := range rows {
		gone[ref] = true
	}
	k.set(func() {
		k.spilled = slices.DeleteFunc(k.spilled, func(it store.Item) bool { return gone[store.SpilledRef{Ref: it.Ref, Seq: it.Seq}] })
	})
	return nil
}

func (k *fakeBackend) ReadSpilled(_ context.Context, from []store.SpilledRange, each int) ([][]store.Item, error) {
	answers := make([][]store.Item, len(from))
	hashes := map[store.LaneKey]store.LaneHash{}
	k.set(func() {
		for _, it := range k.spilled {
			key := it.Lane()
			hash, known := hashes[key]
			if !known {
				hash = key.Hash()
				hashes[key] = hash
			}
			for i, f := range from {
				if it.Outbox == f.Outbox && hash == f.Lane && it.Seq > f.After && len(answers[i]) < each {
					answers[i] = append(answers[i], it)
				}
			}
		}
	})
	return answers, nil
}

func (*fakeBackend) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20}
}

func (k *fakeBackend) Deliver(_ context.Context, msgs []sink.Message) sink.Result {
	var ids []string
	for _, m := range msgs {
		ids = append(ids, m.ID)
	}
	var answer func([]string) sink.Result
	k.set(func() { k.sent, answer = append(k.sent, ids...), k.answer })
	return answer(ids)
}

func (k *fakeBackend) RowsSpilled(n int)                                         { k.set(func() { k.rowsSpilled += n }) }
func (*fakeBackend) Claimed(store.ClaimResult, int)                              {}
func (*fakeBackend) Requested(dispatch.RequestInfo, *sink.Result, time.Duration) {}
func (*fakeBackend) BreakersChanged([]dispatch.OpenBreaker)                      {}
func (*fakeBackend) Stalled(*dispatch.LaneInfo)                                  {}
func (*fakeBackend) Settled(*store.Item, *store.Outcome)                         {}
func (*fakeBackend) Vanished([]*store.Item)                                      {}
func (*fakeBackend) StoreFailed(string, error)                                   {}
func (*fakeBackend) RowUnspillable(*store.Item, error)                           {}
func (*fakeBackend) UnspillableCleared()                                         {}
func (*fakeBackend) Refused(store.Ref, string, error)                            {}

// expectEqual compares the texts of two values.
func expectEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// rowsOf returns rows of one group.
func rowsOf(outbox, group string, ids ...string) (rows []store.Item) {
	for _, id := range ids {
		rows = append(rows, store.Item{
			Ref: store.Ref{Outbox: outbox, ID: id}, Kind: "EVENT", Group: store.GroupOf(group), Payload: []byte("{}"), PayloadSize: 2,
		})
	}
	return rows
}

// byText compares positions in the order of their texts.
func byText(a, b store.Position) int { return cmp.Compare(a, b) }

// advance lets fake time pass and waits until everything due has happened.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
