package capturetest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
)

func testPayloads(t *testing.T, db Database) {
	payloads := []string{
		"",
		" ",
		`{"a": [1, 2.50, 1e3], "b": null}`,
		`quotes ' and " and '' and $$ and backslashes \ \\ \n \x00 \'`,
		"lines\nand\r\nreturns\rand\ttabs\x01\x7f",
		"Grüße, 世界, 😀, e\u0301, \u200b, \ufeff, \U0010ffff",
		strings.Repeat("0123456789abcdef", 1<<16), // 1 MiB
		"NULL",
		`\x414243`,
	}

	r, _ := follow(t, db, store.Checkpoint{})
	want := map[string]string{}
	for i, p := range payloads {
		id := fmt.Sprintf("payload-%d", i)
		want[id] = p
		commit(t, db, Row{ID: id, Payload: p})
	}

	r.rows(len(payloads))
	for _, b := range r.batches {
		for i := range b.Items {
			it := &b.Items[i]
			if string(it.Payload) != want[it.ID] {
				t.Errorf("%s: payload of %d bytes: got %d bytes: %.60q", it.ID, len(want[it.ID]), len(it.Payload), it.Payload)
			}
			if it.Payload == nil {
				t.Errorf("%s: payload is nil, which means that it was dropped", it.ID)
			}
		}
	}
}

// testMaxPayload: a payload above MaxPayload is dropped, and its size is reported.
func testMaxPayload(t *testing.T, db Database) {
	r := newReader(t, db.Source(t, Options{Outbox: outbox, BatchRows: batchRows}))
	const limit = 1000
	r.src.Resume().MaxPayload = limit
	r.start(open(t, r.src, db, store.Checkpoint{}).From)
	sizes := []int{0, limit - 1, limit, limit + 1, 1 << 20}
	for i, size := range sizes {
		commit(t, db, Row{ID: fmt.Sprint(i), Payload: strings.Repeat("x", size)})
	}
	r.rows(len(sizes))
	for _, b := range r.batches {
		for _, it := range b.Items {
			i, _ := strconv.Atoi(it.ID)
			if it.PayloadSize != sizes[i] || (it.Payload == nil) != (sizes[i] > limit) {
				t.Errorf("payload of %d bytes: got %d bytes, reported as %d", sizes[i], len(it.Payload), it.PayloadSize)
			}
		}
	}
}

func testGroups(t *testing.T, db Database) {
	groups := []store.Group{{}, store.GroupOf(""), store.GroupOf("NULL"), store.GroupOf("a b'c\"d\\ü")}
	r, _ := follow(t, db, store.Checkpoint{})
	want := map[string]store.Group{}
	for i, g := range groups {
		id := fmt.Sprintf("group-%d", i)
		want[id] = g
		commit(t, db, Row{ID: id, Group: g, Payload: "x"})
	}
	r.rows(len(groups))
	for _, b := range r.batches {
		for i := range b.Items {
			if it := &b.Items[i]; it.Group != want[it.ID] {
				t.Errorf("%s: group %#v: got %#v", it.ID, want[it.ID], it.Group)
			}
		}
	}
}

// testContextEnd ends a source that waits for its receiver, and a source that waits for the
// database. Neither may leak a goroutine. A feeder beside them may have reconnected meanwhile,
// with other goroutines: so a leak has to show twice.
func testContextEnd(t *testing.T, db Database) {
	left := leftByContextEnd(t, db, "first")
	if left != nil {
		left = leftByContextEnd(t, db, "second")
	}
	if left != nil {
		t.Error(left)
	}
}

func leftByContextEnd(t *testing.T, db Database, turn string) error {
	t.Helper()
	before := goleak.IgnoreCurrent()
	for _, waiting := range []bool{true, false} {
		r, _ := follow(t, db, store.Checkpoint{})
		commit(t, db, rowsOf(fmt.Sprintf("end-%s-%t", turn, waiting), 2)...)
		if !waiting {
			r.rows(2)
		}
		began := time.Now()
		r.close()
		if took := time.Since(began); took > maxShutdownTime {
			t.Errorf("the source took %s to end", took)
		}
	}
	left := goleak.Find(before) // it retries for half a second
	for end := time.Now().Add(waitTimeout); left != nil && time.Now().Before(end); {
		left = goleak.Find(before)
	}
	return left
}
