package sqlite_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

var allLetters = store.DeadLetterFilter{Outbox: "events"}

func (r *rig) letters(t *testing.T, f store.DeadLetterFilter) string {
	t.Helper()
	letters, err := r.store.Failed(ctx(t), f, 99, false)
	if err != nil {
		t.Fatal(err)
	}
	n, err := r.store.CountFailed(ctx(t), f)
	if err != nil || n != len(letters) {
		t.Errorf("%d are counted and %d read, %v", n, len(letters), err)
	}
	var ids []string
	for _, d := range letters {
		ids = append(ids, d.ID)
	}
	return strings.Join(ids, " ")
}

// TestReadsDoNotWaitForWriter: holds and dead letters are read while a service holds the write lock
// and another relay of the name its own. Writes wait.
func TestReadsDoNotWaitForWriter(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1'), ('2')")
	o := outcome("1", store.Failed)
	o.Block = &store.Hold{Lane: store.LaneKey{Outbox: "events"}}
	r.settle(t, o)
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	tx, err := r.db.Begin() // immediate
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("UPDATE outbox_events SET status = 'FAILED'"); err != nil {
		t.Fatal(err)
	}
	reader := openStore(t, r.path, "rig", 0, flowBox())
	holds, err := reader.LoadHolds(ctx(t))
	if err != nil || len(holds) != 1 {
		t.Errorf("%d holds, %v", len(holds), err)
	}
	if n, err := reader.CountFailed(ctx(t), allLetters); err != nil || n != 1 {
		t.Errorf("%d are counted, %v", n, err)
	}
	if letters, err := reader.Failed(ctx(t), allLetters, 9, true); err != nil || len(letters) != 1 {
		t.Errorf("%d are read, %v", len(letters), err)
	}
	c := ctx(t)
	requeued := make(chan string, 1)
	go func() {
		items, err := r.store.Requeue(c, r.epoch, allLetters, 9)
		requeued <- fmt.Sprint(len(items), err)
	}()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := <-requeued; got != "1 <nil>" && got != "2 <nil>" {
		t.Errorf("requeued: %s", got)
	}
}

// TestFilterValues: a filter distinguishes values that the table's collations treat as
// equal, and reads times in every format that services write.
func TestFilterValues(t *testing.T) {
	for _, typ := range []string{"TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM", "BLOB", "INTEGER", "UNTYPED"} {
		t.Run(typ, func(t *testing.T) {
			r := newRig(t, strings.NewReplacer("message_group VARCHAR(255)", "message_group "+typ, "error_message TEXT", "error_message TEXT COLLATE NOCASE").
				Replace(flowTable), 0, flowBox())
			r.exec(t, `INSERT INTO outbox_events (id, status, created_at, message_group, error_message, processed_at) VALUES
				('a', 'FAILED', 1, 'A', 'Über', '2024-02-29 12:00:00'), ('b', 'FAILED', 2, 'a', 'über', '2024-02-29T13:00:00.5Z'),
				('c', 'FAILED', 3, 'a ', '100%', 1709215200), ('d', 'FAILED', 4, 7, '1000', 1709218800000),
				('e', 'FAILED', 5, NULL, NULL, NULL), ('f', 'FAILED', 6, '', NULL, 'no time')`)
			group := func(g store.Group) store.DeadLetterFilter {
				return store.DeadLetterFilter{Outbox: "events", Group: &g}
			}
			at := func(hour int) time.Time { return time.Date(2024, 2, 29, hour, 0, 0, 0, time.UTC) }
			for want, f := range map[string]store.DeadLetterFilter{
				"a": group(store.GroupOf("A")), "b": group(store.GroupOf("a")), "c": group(store.GroupOf("a ")), "d": group(store.GroupOf("7")),
				"e": group(store.Group{}), "f": group(store.GroupOf("")), "": group(store.GroupOf("none")),
				"b c d": {Outbox: "events", Since: at(13)}, "a b": {Outbox: "events", Until: at(14)},
				"b c": {Outbox: "events", Since: at(13), Until: at(15)}, "a b c d e f": allLetters,
			} {
				if got := r.letters(t, f); got != want {
					t.Errorf("%+v: %q, want %q", f, got, want)
				}
			}
			if got := r.letters(t, store.DeadLetterFilter{Outbox: "events", Error: "Ü"}) + r.letters(t, store.DeadLetterFilter{Outbox: "events", Error: "0%"}); got != "ac" {
				t.Errorf("by errors: %q", got)
			}
		})
	}
}

// TestRequeueColumns: a NOT NULL column gets the value closest to NULL, and a column with
// the time of the last change keeps it.
func TestRequeueColumns(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"error_message TEXT", "error_message TEXT", "PENDING 0 NULL text"},
		{"error_message TEXT", "error_message TEXT NOT NULL DEFAULT ''", "PENDING 0 '' text"},
		{"processed_at TIMESTAMP", "processed_at TIMESTAMP NOT NULL DEFAULT 0", "PENDING 0 NULL text"},
	} {
		r := newRig(t, strings.Replace(flowTable, c.old, c.new, 1), 0, flowBox())
		r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1')")
		o := outcome("1", store.Failed)
		o.Error, o.RetryCount = "e", 3
		r.settle(t, o)
		if items, err := r.store.Requeue(ctx(t), r.epoch, allLetters, 1); err != nil || len(items) != 1 {
			t.Fatal(items, err)
		}
		const state = "SELECT status || ' ' || retry_count || ' ' || quote(error_message) || ' ' || typeof(processed_at) FROM outbox_events"
		if got := ask[string](t, r.db, state); got != c.want {
			t.Errorf("%s: the row says %q, want %q", c.new, got, c.want)
		}
	}
}

// TestRefusedRequeueKeepsRowsAndHolds: the error names the trigger or constraint that refuses the rows, and rows
// and holds stay.
func TestRefusedRequeueKeepsRowsAndHolds(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1'), ('2')")
	for _, id := range []string{"1", "2"} {
		o := outcome(id, store.Failed)
		o.Block = &store.Hold{Lane: store.LaneKey{Outbox: "events", Group: store.GroupOf(id)}}
		r.settle(t, o)
	}
	want := func(part string, err error) {
		t.Helper()
		var refused *store.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), part) {
			t.Errorf("%v, want %q", err, part)
		}
		if holds, err := r.store.LoadHolds(ctx(t)); err != nil || len(holds) != 2 || r.letters(t, allLetters) != "1 2" {
			t.Errorf("%d holds, %v; FAILED are %s", len(holds), err, r.letters(t, allLetters))
		}
	}
	r.exec(t, "CREATE TRIGGER keep BEFORE DELETE ON outbox_events WHEN old.id = '2' BEGIN SELECT RAISE(ABORT, 'keep it'); END")
	_, err := r.store.Discard(ctx(t), r.epoch, allLetters, 9)
	want("keep it", err)
	r.exec(t, "CREATE TRIGGER stay BEFORE UPDATE ON outbox_events BEGIN SELECT RAISE(IGNORE); END")
	_, err = r.store.Requeue(ctx(t), r.epoch, allLetters, 9)
	want("trigger", err)
	r.exec(t, "DROP TRIGGER stay; DROP TRIGGER keep")
	if items, err := r.store.Requeue(ctx(t), r.epoch, allLetters, 9); err != nil || len(items) != 2 {
		t.Errorf("without triggers: %v, %v", items, err)
	}
}

// TestFailedAndHoldAreOneTransaction: a row does not become FAILED without the hold that its outcome
// requests.
func TestFailedAndHoldAreOneTransaction(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, `INSERT INTO outbox_events (id) VALUES ('1');
		CREATE TRIGGER few BEFORE INSERT ON sluicebox_record WHEN json_extract(new.body, '$.retryCount') >= 5 BEGIN SELECT RAISE(ABORT, 'too many'); END`)
	block := outcome("1", store.Failed)
	block.RetryCount, block.Block = 5, &store.Hold{Lane: store.LaneKey{Outbox: "events"}}
	_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{block})
	var refused *store.RefusedError
	if got := r.letters(t, allLetters); !errors.As(err, &refused) || got != "" {
		t.Errorf("%v; FAILED are %q", err, got)
	}
	block.RetryCount = 4
	r.settle(t, block)
	if holds, err := r.store.LoadHolds(ctx(t)); err != nil || len(holds) != 1 || r.letters(t, allLetters) != "1" {
		t.Errorf("%d holds, %v; FAILED are %q", len(holds), err, r.letters(t, allLetters))
	}
}
