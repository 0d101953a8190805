package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// TestEachBatchHasPosition: every batch has a position, also a part of a transaction, and
// reading can resume at each of them.
func TestEachBatchHasPosition(t *testing.T) {
	d := newDatabase(t)
	cfg := d.config()
	cfg.MaxBatchRows = 10
	r, o := read(t, d, cfg, store.Checkpoint{})
	list, ids := rows("large", 35)
	began := time.Now()
	d.commit(t, list...)
	r.rows(ids...)
	for _, b := range r.batches {
		if len(b.Items) > 10 {
			t.Errorf("a batch of %d rows, the bound is 10", len(b.Items))
		}
		for i := range b.Items {
			it := &b.Items[i]
			if early := began.Sub(it.Committed); early > time.Second || time.Since(it.Committed) < -time.Second || it.Txn != 0 {
				t.Errorf("row %s: inserted at %s, transaction %d", it.ID, it.Committed, it.Txn)
			}
		}
	}
	r.close()
	for i, b := range r.batches {
		again, second := read(t, d, cfg, store.Checkpoint{Origin: o.Origin, Position: b.Position})
		if second.View != nil || second.From != b.Position {
			t.Fatalf("position %s: %+v", b.Position, second)
		}
		again.rows(ids[min((i+1)*10, len(ids)):]...)
		again.close()
	}
}

func TestReconnectInTransaction(t *testing.T) {
	d := newDatabase(t)
	cfg := d.config()
	cfg.MaxBatchRows = 10
	src := &disconnectable{Source: newSource(t, cfg)}
	o := open(t, d, src.Source, store.Checkpoint{})
	defer src.Close()
	list, ids := rows("large", 100)
	d.commit(t, list...)
	out := make(chan capture.Batch)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	lost := make(losses, 10)
	go func() { done <- capture.Follow(ctx, src, o.From, out, lost) }()
	var got []string
	for len(got) < len(ids) {
		b := <-out
		for i := range b.Items {
			got = append(got, b.Items[i].ID)
		}
		if n := len(got); n == 30 || n == 60 {
			src.cut() // the next part waits
			if err := <-lost; !errors.Is(err, errCut) {
				t.Errorf("the run ended with %v", err)
			}
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !slices.Equal(got, ids) {
		t.Errorf("%d rows came, want %d: %q", len(got), len(ids), got)
	}
}

type losses chan error

func (losses) Connected()                                {}
func (l losses) Disconnected(err error, _ time.Duration) { l <- err }

func TestSpanEnds(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	defer src.Close()
	o := open(t, d, src, store.Checkpoint{})
	list, ids := rows("span", 20)
	d.commit(t, list...)
	for _, until := range []int{5, 12, 20} {
		out := make(chan capture.Batch, 100)
		from := o.From
		if until > 5 {
			from = store.Position(fmt.Sprint(5))
		}
		if err := src.Run(t.Context(), capture.Span{From: from, Until: store.Position(fmt.Sprint(until))}, out); err != nil {
			t.Fatal(err)
		}
		close(out)
		var got []string
		for b := range out {
			for i := range b.Items {
				got = append(got, b.Items[i].ID)
			}
		}
		begin := map[int]int{5: 0, 12: 5, 20: 12}[until] // a run continues after the last part
		if !slices.Equal(got, ids[begin:until]) {
			t.Errorf("until %d: %q", until, got)
		}
	}
	if err := src.Run(t.Context(), capture.Span{Until: "x"}, nil); err == nil {
		t.Error("an end that is no position is taken")
	}
}

// TestDeletedRowsAreSkipped: rows deleted before they were read are left out, and the position moves
// past them.
func TestDeletedRowsAreSkipped(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	o := open(t, d, src, store.Checkpoint{})
	list, ids := rows("row", 9)
	d.commit(t, list...)
	d.exec(t, "DELETE FROM outbox_events WHERE id IN (?, ?, ?)", ids[0], ids[4], ids[8])
	d.exec(t, "UPDATE outbox_events SET payload = 'changed' WHERE id = ?", ids[1])
	r := run(t, src, o.From)
	r.until("the last position", func() bool { return r.last == "9" })
	if want := slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		return id == ids[0] || id == ids[4] || id == ids[8]
	}); !slices.Equal(r.ids, want) {
		t.Errorf("%q came, want %q", r.ids, want)
	}
	if p := string(r.batches[0].Items[0].Payload); p != "changed" {
		t.Errorf("a changed row came as it was: %q", p)
	}
	d.exec(t, "DELETE FROM outbox_events")
	d.commit(t, capturetest.Row{ID: "gone"})
	// A position without rows is a batch too.
	d.exec(t, "BEGIN IMMEDIATE; INSERT INTO outbox_events (id) VALUES ('passing'); DELETE FROM outbox_events WHERE id = 'passing'; COMMIT")
	r.until("a position without a row", func() bool { return r.last == "11" })
}

// TestMarksKeepTheirPlace: a mark comes after the rows before it and before the rows after it.
func TestMarksKeepTheirPlace(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	o := open(t, d, src, store.Checkpoint{})
	for i := range 3 {
		d.commit(t, capturetest.Row{ID: fmt.Sprint("row", i)})
		if err := src.Mark(t.Context(), fmt.Sprint("mark", i)); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, src, o.From)
	r.until("the marks", func() bool { return len(r.marks) == 3 })
	for i, b := range r.batches {
		if len(b.Items) != 1 || b.Items[0].ID != fmt.Sprint("row", i) || len(b.Marks) != 1 || b.Marks[0] != fmt.Sprint("mark", i) {
			t.Errorf("batch %d: %d rows, marks %q", i, len(b.Items), b.Marks)
		}
	}
}

func TestBatchBytes(t *testing.T) {
	d := newDatabase(t)
	cfg := d.config()
	cfg.MaxBatchBytes = 1000
	r, _ := read(t, d, cfg, store.Checkpoint{})
	var list []capturetest.Row
	for i, size := range []int{400, 400, 400, 5000, 10, 990, 1} {
		list = append(list, capturetest.Row{ID: fmt.Sprint(i), Payload: strings.Repeat("x", size)})
	}
	d.commit(t, list...)
	r.rows("0", "1", "2", "3", "4", "5", "6")
	var sizes []int
	for _, b := range r.batches {
		sizes = append(sizes, len(b.Items))
	}
	if !slices.Equal(sizes, []int{2, 1, 1, 2, 1}) {
		t.Errorf("batches of %v rows", sizes)
	}
}

// TestAcknowledge: the log is deleted when it is acknowledged, not before, and the numbers
// continue.
func TestAcknowledge(t *testing.T) {
	d := newDatabase(t)
	cfg := d.config()
	r, o := read(t, d, cfg, store.Checkpoint{})
	list, ids := rows("row", 1300)
	d.commit(t, list...)
	r.rows(ids...)
	left := func() int { return ask[int](t, d, "SELECT count(*) FROM sluicebox_log_relay") }
	if n := left(); n != 1300 {
		t.Fatalf("%d rows of the log are left before an acknowledgement", n)
	}
	r.src.Acknowledge("99999") // was never sent
	r.src.Acknowledge("not a position")
	r.src.Acknowledge("1250")
	eventually(t, "the log up to 1250 is deleted", func() bool { return left() == 50 })
	r.src.Acknowledge("3") // older
	r.src.Acknowledge("1300")
	eventually(t, "the whole log is deleted", func() bool { return left() == 0 })
	d.exec(t, "VACUUM")
	d.commit(t, capturetest.Row{ID: "next"})
	r.until("a row behind an empty log", func() bool { return r.last == "1301" })
	r.close()
	for at, cut := range map[store.Position]bool{"1301": false, "1300": false, "1299": true, "1302": true, "x": true} {
		src := newSource(t, cfg)
		again := open(t, d, src, store.Checkpoint{Origin: o.Origin, Position: at})
		if (again.View != nil) != cut {
			t.Errorf("a checkpoint at %s: %+v", at, again)
		}
		src.Close()
	}
}

// TestLastAcknowledgementTakesEffect: the last acknowledgement before the end takes effect.
func TestLastAcknowledgementTakesEffect(t *testing.T) {
	d := newDatabase(t)
	r, _ := read(t, d, d.config(), store.Checkpoint{})
	list, ids := rows("row", 100)
	d.commit(t, list...)
	r.rows(ids...)
	r.src.Acknowledge("100")
	r.close()
	if n := ask[int](t, d, "SELECT count(*) FROM sluicebox_log_relay"); n != 0 {
		t.Errorf("%d rows of the log are left", n)
	}
}

func TestSeveralOutboxes(t *testing.T) {
	jobs := store.Outbox{Name: "jobs", Table: `odd "table's`, Kind: "JOB", Layout: store.Layout{
		Name:    "jobs",
		Columns: store.Columns{ID: "Job Id", Kind: "type", Group: "who", Payload: "body"}, State: store.StateNone,
	}}
	again := outboxes("also")[0]
	again.Kind = "COPY"
	boxes := append(outboxes("shop"), jobs, again)
	d := newDatabaseOf(t, createTable+`; CREATE TABLE "odd ""table's" ("job id" INTEGER PRIMARY KEY, type TEXT, who INT, body BLOB)`, boxes...)
	cfg := d.config()
	cfg.Outboxes = boxes
	r, _ := read(t, d, cfg, store.Checkpoint{})
	d.exec(t, `BEGIN IMMEDIATE;
INSERT INTO outbox_events (id, payload, retry_count) VALUES ('e1', 'p1', 4);
INSERT INTO "odd ""table's" (type, who, body) VALUES ('mail', 7, x'00ff'), ('', NULL, NULL);
INSERT INTO outbox_events (id) VALUES ('e2');
COMMIT`)
	r.until("the rows", func() bool { return len(r.ids) == 6 })
	var got []string
	for _, b := range r.batches {
		for i := range b.Items {
			it := &b.Items[i]
			got = append(got, fmt.Sprintf("%s %s %s %v %q %d", it.Outbox, it.ID, it.Kind, it.Group, it.Payload, it.RetryCount))
		}
	}
	// SQLite guarantees no order for several triggers on one table.
	slices.Sort(got)
	want := []string{
		`also e1 COPY (none) "p1" 4`, `also e2 COPY (none) "" 0`,
		`jobs 1 mail 7 "\x00\xff" 0`, `jobs 2  (none) "" 0`,
		`shop e1 EVENT (none) "p1" 4`, `shop e2 EVENT (none) "" 0`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q came, want %q", got, want)
	}
	// With fewer outboxes the log continues, and the triggers of the removed ones are
	// dropped.
	r.close()
	at := store.Checkpoint{Origin: originOf(t, d), Position: r.last}
	r, o := read(t, d, d.config(), at)
	if o.View != nil {
		t.Errorf("an outbox less: %s", o.SnapshotReason)
	}
	if n := ask[int](t, d, "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'"); n != 1 {
		t.Errorf("%d triggers are left", n)
	}
	r.close()
	if _, o = read(t, d, cfg, at); o.View == nil {
		t.Error("two more outboxes, and the log goes on")
	}
}

func originOf(t *testing.T, d *database) string {
	return ask[string](t, d, "SELECT id FROM sluicebox_log WHERE name = 'relay'")
}

// TestOpenTransactionIsNotSent: a transaction larger than the service's cache writes to the WAL long
// before it commits. None of its rows is sent before the commit.
func TestOpenTransactionIsNotSent(t *testing.T) {
	d := newDatabase(t)
	r, _ := read(t, d, d.config(), store.Checkpoint{})
	tx, err := d.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("PRAGMA cache_size = 5"); err != nil {
		t.Fatal(err)
	}
	const n = 2000
	if _, err := tx.Exec(`WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 2000)
		INSERT INTO outbox_events (id, payload) SELECT i, hex(randomblob(500)) FROM c`); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.path + "-wal"); err != nil || info.Size() < 1<<20 {
		t.Fatalf("the WAL has not grown; nothing is proven: %v, %v", info.Size(), err)
	}
	select {
	case b := <-r.out:
		t.Fatalf("%d rows of an open transaction came", len(b.Items))
	case <-time.After(300 * time.Millisecond): // checks the absence of a batch
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	r.until("the rows", func() bool { return len(r.ids) == n })
}

func TestRowWithoutID(t *testing.T) {
	for _, id := range []string{"NULL", "1.5"} {
		t.Run(id, func(t *testing.T) {
			d := newDatabaseOf(t, strings.Replace(createTable, "id TEXT PRIMARY KEY", "id UNIQUE", 1), outboxes("shop")...)
			r, _ := read(t, d, d.config(), store.Checkpoint{})
			d.exec(t, "INSERT INTO outbox_events (id) VALUES ("+id+")")
			var setup *store.SetupError
			if err := r.fails(); !errors.As(err, &setup) || !strings.Contains(setup.Remedy, "seq = 1") {
				t.Errorf("the run ended with %v", err)
			}
		})
	}
}

func TestDiscard(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	defer src.Close()
	o := open(t, d, src, store.Checkpoint{})
	o.View.Close()
	if err := o.Discard(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := ask[int](t, d, "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' OR name = 'sluicebox_log_relay'"); n != 0 {
		t.Errorf("%d things are left", n)
	}
	if err := src.Run(t.Context(), capture.Span{}, nil); err == nil {
		t.Error("a source runs without its log")
	}
	d.commit(t, capturetest.Row{ID: "1"})
	if o := open(t, d, src, store.Checkpoint{}); o.View == nil {
		t.Error("no cut after all was given up")
	}
}

func TestClearCheckpointFails(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	defer src.Close()
	fault := errors.New("not now")
	if _, err := src.Open(t.Context(), store.Checkpoint{}, &capturetest.Tables{Viewer: d.views, Fail: fault}); !errors.Is(err, fault) {
		t.Errorf("Open: %v", err)
	}
	if n := ask[int](t, d, "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'sluicebox%'"); n != 0 {
		t.Errorf("%d things were made before the checkpoint was forgotten", n)
	}
}

func TestReplacedFile(t *testing.T) {
	d := newDatabase(t)
	r, _ := read(t, d, d.config(), store.Checkpoint{})
	other := newDatabase(t)
	if _, err := other.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other.path, d.path); err != nil {
		t.Fatal(err)
	}
	err := r.fails()
	// A look at the new file before the look for its number finds no log.
	if err == nil || !strings.Contains(err.Error(), "database file was replaced") && !strings.Contains(err.Error(), "log did not exist yet") {
		t.Errorf("the run ended with %v", err)
	}
	// The next Open finds that the log is missing.
	var lost *capture.LostError
	if err := r.src.Run(t.Context(), capture.Span{}, nil); !errors.As(err, &lost) {
		t.Errorf("the next run ended with %v", err)
	}
}

func TestSetupErrors(t *testing.T) {
	d := newDatabase(t)
	cfg := d.config()
	cfg.URL = "sqlite://" + filepath.Join(t.TempDir(), "absent.db")
	check := func(name string, cfg sqlite.Config, want string) {
		t.Helper()
		src, err := sqlite.New(cfg)
		if err == nil {
			_, err = src.Open(t.Context(), store.Checkpoint{}, &capturetest.Tables{Viewer: d.views})
			src.Close()
		}
		var setup *store.SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	check("no file", cfg, "does not exist")
	cfg = d.config()
	cfg.Outboxes[0].Table = "nowhere"
	check("no table", cfg, "no table \"nowhere\"")
	cfg = d.config()
	cfg.Outboxes[0].Layout.Columns.ID = "nothing"
	check("no column", cfg, "has no column nothing")
	cfg = d.config()
	cfg.Name = "No-Name"
	cfg.MaxBatchRows = -1
	cfg.Outboxes = append(outboxes("Shop"), outboxes("shop")...)
	for _, want := range []string{"No-Name", "-1 rows", `"shop" is configured twice`} {
		check("bad configuration", cfg, want)
	}
	if _, err := sqlite.New(sqlite.Config{}); err == nil {
		t.Error("an empty configuration passes")
	}
	if err := newSource(t, d.config()).Run(t.Context(), capture.Span{}, nil); err == nil {
		t.Error("a source runs before Open")
	}
}

// TestRetained: the estimate agrees with the pages of the log in the file, for ids of any
// type.
func TestRetained(t *testing.T) {
	for name, id := range map[string]string{
		"short texts": "'e' || i", "long texts": "printf('%0200d', i)", "numbers": "i",
		"blobs": "randomblob(16)",
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabaseOf(t, `CREATE TABLE outbox_events (
	id PRIMARY KEY, message_group TEXT, payload TEXT, status TEXT NOT NULL DEFAULT 'PENDING',
	retry_count INT NOT NULL DEFAULT 0, created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
	processed_at DATETIME, error_message TEXT)`, outboxes("shop")...)
			src := newSource(t, d.config())
			defer src.Close()
			open(t, d, src, store.Checkpoint{}).View.Close()
			d.exec(t, fmt.Sprintf(`WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 5000)
				INSERT INTO outbox_events (id, payload) SELECT %s, 'p' FROM c`, id))
			pages := ask[int64](t, d, "SELECT sum(pgsize) FROM dbstat WHERE name = 'sluicebox_log_relay'")
			kept, err := src.Retained(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the log has %d bytes of pages, the estimate is %d", pages, kept.Bytes)
			if kept.Bytes < pages*3/4 || kept.Bytes > pages*5/4 || kept.Limit != 0 {
				t.Errorf("the log has %d bytes of pages, the source says %+v", pages, kept)
			}
		})
	}
}

// TestRetainedDoesNotWaitForWriter: Retained waits neither for a service that holds the write lock
// nor for a marker that waits for it.
func TestRetainedDoesNotWaitForWriter(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	defer src.Close()
	open(t, d, src, store.Checkpoint{}).View.Close()
	list, _ := rows("row", 10)
	d.commit(t, list...)
	service, err := sqlitestore.Dial(t.Context(), d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	err = service.Write(t.Context(), sqlitestore.Normal, func(context.Context) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		marked := make(chan error, 1)
		go func() { marked <- src.Mark(ctx, "mark") }()
		const waits = 300 * time.Millisecond // so that the marker waits for the lock
		for looks, began := 0, time.Now(); looks < 10 || time.Since(began) < waits; looks++ {
			if kept, err := src.Retained(ctx); err != nil || kept.Bytes == 0 {
				t.Errorf("look %d: %+v, %v", looks, kept, err)
			}
		}
		cancel()
		if err := <-marked; err == nil {
			t.Error("a marker was written past the lock")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
