package capturetest

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// testRetained: the retained log grows with the rows written, received or not, and shrinks
// with acknowledgements. It is also known before a run.
func testRetained(t *testing.T, h Harness) {
	if !h.Log {
		testNothingRetained(t, h.Setup(t))
		return
	}

	db := h.isolated(t)
	one, two, three := largeRows("one"), largeRows("two"), largeRows("three")
	each := h.LogBytes(one)

	r := h.reader(t, db)
	o := open(t, r.src, db, store.Checkpoint{})
	r.retains("before anything is written", 0, each)
	commit(t, db, one...)
	r.retains("before the run", 1, each)
	r.start(o.From)
	commit(t, db, two...)
	r.retains("before anything is received", 2, each)
	r.rows(len(one))
	r.until("the end of a transaction", func() bool { return r.last != o.From })
	first := r.last
	r.rows(len(one) + len(two))
	r.until("the end of a transaction", func() bool { return r.last != first })
	r.retains("all is received and nothing acknowledged", 2, each)
	r.src.Acknowledge(first)
	r.retains("one of two is acknowledged", 1, each)
	r.src.Acknowledge(r.last)
	r.retains("all is acknowledged", 0, each)
	commit(t, db, three...)
	r.retains("one more is written", 1, each)

	at := r.end(o, r.last)
	again := h.reader(t, db)
	second := open(t, again.src, db, at)
	if second.View != nil {
		t.Errorf("the log is intact, but Open took a snapshot: %s", second.SnapshotReason)
	}

	// A source that ends may fail to send its last acknowledgement to the server.
	again.retainsUpTo("opened at the checkpoint", 1, 3, each)
	again.start(second.From)
	again.rows(len(three))
	again.until("the end of a transaction", func() bool { return again.last != second.From })
	again.src.Acknowledge(again.last)
	again.retains("all is acknowledged again", 0, each)
}

// reader returns a reader that knows whether the log is bounded.
func (h *Harness) reader(t *testing.T, db Database) *reader {
	r := newReader(t, db.Source(t, Options{Outbox: outbox, BatchRows: batchRows}))
	r.bounded = h.Bounded
	return r
}

// testNothingRetained is for a source that reads no log.
func testNothingRetained(t *testing.T, db Database) {
	r, _ := follow(t, db, store.Checkpoint{})
	r.retains("before anything is written", 0, 1)
	rows := largeRows("row")
	commit(t, db, rows...)
	r.rows(len(rows))
	r.retains("with rows that are not settled", 0, 1)
}

// retains checks that the log of a number of transactions is retained, each of which adds
// about the given number of bytes.
func (r *reader) retains(when string, transactions, each int64) {
	r.t.Helper()
	r.retainsUpTo(when, transactions, transactions, each)
}

func (r *reader) retainsUpTo(when string, least, most, each int64) {
	r.t.Helper()
	kept, err := r.src.Retained(r.t.Context())
	if err != nil {
		r.t.Fatalf("%s: %v", when, err)
	}
	r.t.Logf("%s: %d bytes retained", when, kept.Bytes)
	from, to := least*each*2/3, most*each*4/3
	if most == 0 {
		to = each / 8 // other log of the server; Kafka's counts each record at the mean size
	}
	if kept.Bytes < from || kept.Bytes > to {
		r.t.Errorf("%s: %d bytes retained, want %d to %d", when, kept.Bytes, from, to)
	}
	if (kept.Limit > 0) != r.bounded {
		r.t.Errorf("%s: the limit is %d; there is one: %v", when, kept.Limit, r.bounded)
	}
}

// largeRows returns rows of one kilobyte each that no database can compress.
func largeRows(prefix string) []Row {
	rows := rowsOf(prefix, 10*batchRows)
	for i := range rows {
		rows[i].Payload = strings.Repeat("x", 1<<10)
	}
	return rows
}
