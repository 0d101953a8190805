package capturetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// testReconnects closes the connection at random while transactions of all sizes
// arrive. Every row must arrive once, in commit order.
func testReconnects(t *testing.T, db Database) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	r, _ := follow(t, db, store.Checkpoint{})
	var want []string
	const rounds = 6
	for round := range rounds {
		for i := range 20 {
			rows := rowsOf(fmt.Sprintf("r%d-%02d", round, i), 1+rnd.IntN(3*batchRows))
			commit(t, db, rows...)
			want = append(want, idsOf(rows)...)
		}
		stop := len(r.ids) + rnd.IntN(len(want)-len(r.ids))
		r.rows(stop)
		if rnd.IntN(2) == 0 && len(r.batches) > 0 {
			r.src.Acknowledge(r.last)
		}
		db.Disconnect(t)
	}

	r.rows(len(want))
	r.expect(want)
	if len(r.losses()) == 0 {
		t.Error("no connection was lost; the test proved nothing")
	}
}

// testReconnectInTransaction closes the connection after a part of a transaction was received, while the
// next part waits. The rest must arrive, and no row of the first part again. If each part
// has a position, the source may notice the lost connection only when the next part is
// received. No other test may write to the log, because a paused source reads only so far
// ahead, and behind that it does not notice.
func testReconnectInTransaction(t *testing.T, h Harness) {
	db, fine := h.isolated(t), h.RowPositions
	r, _ := follow(t, db, store.Checkpoint{})
	commit(t, db, rowsOf("before", 1)...)
	r.rows(1)
	rows := append(rowsOf("before", 1), rowsOf("cut", 5*batchRows+1)...)
	commit(t, db, rows[1:]...)
	for range 2 {
		r.rows(len(r.ids) + batchRows)
		if !fine && r.batches[len(r.batches)-1].Position != "" || len(r.ids) >= len(rows) {
			t.Fatal("the transaction did not come in parts")
		}
		db.Disconnect(t)
		if !fine {
			r.loses()
		}
	}

	r.rows(len(rows))
	commit(t, db, rowsOf("after", 1)...)
	r.rows(len(rows) + 1)
	r.expect(append(idsOf(rows), idsOf(rowsOf("after", 1))...))
	if len(r.losses()) == 0 {
		t.Error("no connection was lost; the test proved nothing")
	}
}

// end stops a reader and returns the checkpoint of its position.
func (r *reader) end(o capture.OpenResult, at store.Position) store.Checkpoint {
	r.t.Helper()
	r.close()
	return store.Checkpoint{Origin: o.Origin, Position: at}
}

// threeTransactions commits three transactions, reads them, and returns the position after
// the first.
func threeTransactions(t *testing.T, db Database, r *reader) (first store.Position) {
	t.Helper()
	commit(t, db, rowsOf("one", 3)...)
	r.rows(3)
	first = r.last
	commit(t, db, rowsOf("two", batchRows+3)...)
	commit(t, db, rowsOf("three", 3)...)
	r.rows(batchRows + 9)
	return first
}

func expectRest(t *testing.T, db Database, at store.Checkpoint) {
	t.Helper()
	again, o := follow(t, db, at)
	if o.View != nil || o.SnapshotReason != "" || o.From != at.Position || o.Origin != at.Origin {
		t.Fatalf("the log is intact from %+v, but Open returned %+v", at, o)
	}
	again.rows(batchRows + 6)
	again.expect(append(idsOf(rowsOf("two", batchRows+3)), idsOf(rowsOf("three", 3))...))
}

func testReopenAcknowledged(t *testing.T, db Database) {
	r, o := follow(t, db, store.Checkpoint{})
	first := threeTransactions(t, db, r)
	r.src.Acknowledge(first)
	r.src.Acknowledge(o.From) // an older position is ignored
	expectRest(t, db, r.end(o, first))
}

// testReopenAhead: the checkpoint was saved, but the server did not receive the
// acknowledgement.
func testReopenAhead(t *testing.T, db Database) {
	r, o := follow(t, db, store.Checkpoint{})
	first := threeTransactions(t, db, r)
	expectRest(t, db, r.end(o, first))
}

func testReopenUnacknowledged(t *testing.T, db Database) {
	r, o := follow(t, db, store.Checkpoint{})
	threeTransactions(t, db, r)
	want := r.ids
	again, second := follow(t, db, r.end(o, o.From))
	if second.View != nil {
		t.Fatalf("the log is intact, but Open took a snapshot: %s", second.SnapshotReason)
	}
	again.rows(len(want))
	again.expect(want)
}

func testOtherOrigin(t *testing.T, db Database) {
	r, o := follow(t, db, store.Checkpoint{})
	first := threeTransactions(t, db, r)
	at := r.end(o, first)
	at.Origin = "another/" + at.Origin
	again, second := follow(t, db, at)
	if second.SnapshotReason == "" || second.Origin != o.Origin {
		t.Fatalf("a checkpoint of another origin was accepted: %+v", second)
	}
	commit(t, db, rowsOf("new", 1)...)
	again.rows(1)
	again.expect(idsOf(rowsOf("new", 1)))
}

func testUntil(t *testing.T, db Database) {
	r, o := follow(t, db, store.Checkpoint{})
	threeTransactions(t, db, r)
	var two store.Position // at or shortly after the end of the second transaction
	var all, want []string
	for _, b := range r.batches {
		for i := range b.Items {
			all = append(all, b.Items[i].ID)
		}
		if slices.ContainsFunc(b.Items, func(it store.Item) bool { return it.Group.Name == "two" }) {
			two, want = b.Position, slices.Clone(all)
		}
	}

	src := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	open(t, src, db, r.end(o, o.From))
	defer src.Close()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	out := make(chan capture.Batch, 100)
	if err := src.Run(ctx, capture.Span{From: o.From, Until: two}, out); err != nil {
		t.Fatal(err)
	}

	close(out)
	var ids []string
	for b := range out {
		for i := range b.Items {
			ids = append(ids, b.Items[i].ID)
		}
	}
	sameOrder(t, ids, want)
}

func testIdlePosition(t *testing.T, db Database) {
	r, _ := follow(t, db, store.Checkpoint{})
	for range 2 {
		before := r.last
		db.Unrelated(t)
		r.until("a position without rows", func() bool { return r.src.Compare(r.last, before) > 0 })
		r.src.Acknowledge(r.last)
	}
	if len(r.ids) > 0 {
		t.Errorf("rows %q came", r.ids)
	}
}

// testPause receives nothing for three times the server's timeout for a silent client, with
// more data than the buffers in between hold. A machine that stalls for a second may cost
// the connection once. A source that goes silent loses it after each timeout.
func testPause(t *testing.T, db Database) {
	const pause = 6 * time.Second
	r, _ := follow(t, db, store.Checkpoint{})
	var want []string
	for i := range 60 {
		rows := rowsOf(fmt.Sprintf("p%02d", i), 1)
		rows[0].Payload = string(make512k(byte('a' + i%26)))
		commit(t, db, rows...)
		want = append(want, rows[0].ID)
	}
	r.rows(1)
	<-time.After(pause) // the pause under test
	r.rows(len(want))
	r.expect(want)
	if lost := r.losses(); len(lost) > 1 {
		t.Errorf("the pause cost the connection: %v", lost)
	}
}

func make512k(c byte) []byte {
	b := make([]byte, 512<<10)
	for i := range b {
		b[i] = c
	}
	return b
}
