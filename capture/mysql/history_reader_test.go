package mysql_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// sessions counts the sessions of the streaming role.
func (d *database) sessions(t *testing.T) (n int) {
	t.Helper()
	list := "information_schema.processlist"
	if d.flavour == servers.MySQL {
		list = "performance_schema.processlist"
	}
	if err := d.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+list+" WHERE user = ?", d.role).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func historyHarness(f servers.Flavour, url func(t *testing.T) string) capturetest.HistoryHarness {
	return capturetest.HistoryHarness{
		Setup:         func(t *testing.T) capturetest.Database { return newDatabase(t, f, url(t)) },
		ReadsFromTime: true,
		Readers:       func(t *testing.T, db capturetest.Database) int { return db.(*database).sessions(t) },
		Disconnect:    func(t *testing.T, db capturetest.Database) { db.Disconnect(t) },
		Delete: func(t *testing.T, db capturetest.Database, ids []string) {
			db.(*database).exec(t, "DELETE FROM outbox_events WHERE id IN ('"+strings.Join(ids, "', '")+"')")
		},
	}
}

// lostHistoryHarness returns the harness for a server of the test's own, which loses its log and
// shuts down.
func lostHistoryHarness(f servers.Flavour, srv *servers.MySQLServer) capturetest.HistoryHarness {
	h := historyHarness(f, func(*testing.T) string { return srv.Database() })
	h.Losses = map[string]func(*testing.T, capturetest.Database, capture.StartPoint){
		"purged": func(t *testing.T, db capturetest.Database, at capture.StartPoint) {
			db.(*database).wantLost(t, at, "")
			db.(*database).purge(t)
			db.(*database).wantLost(t, at, "purged")
		},
	}

	same := func(change func(t *testing.T, d *database, at *capture.StartPoint)) func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database {
		return func(t *testing.T, db capturetest.Database, at *capture.StartPoint) capturetest.Database {
			change(t, db.(*database), at)
			return db
		}
	}

	h.OtherLogs = map[string]func(*testing.T, capturetest.Database, *capture.StartPoint) capturetest.Database{
		"another server": func(t *testing.T, _ capturetest.Database, _ *capture.StartPoint) capturetest.Database {
			return newDatabase(t, f, f.Database(t))
		},
		"reset": same(func(t *testing.T, d *database, _ *capture.StartPoint) { d.exec(t, d.reset()) }),
		"reset, and as far again": same(func(t *testing.T, d *database, _ *capture.StartPoint) {
			nextSecond()
			d.exec(t, d.reset())
			for range 50 {
				d.Unrelated(t)
			}
		}),
		"a checkpoint of nobody's": same(func(_ *testing.T, _ *database, at *capture.StartPoint) { at.Origin = "" }),
		"not a position":           same(func(_ *testing.T, _ *database, at *capture.StartPoint) { at.Position = "1234.5" }),
	}

	if f == servers.MariaDB { // MySQL's shutdown: see TestShutdown
		h.Shutdown = func(t *testing.T) (capturetest.Database, func() time.Duration) {
			return newDatabase(t, f, srv.Database()), func() time.Duration { return srv.Stop("fast") }
		}
	}

	return h
}

// wantLost checks whether the server still has the log behind a position, alone and
// together with a position of another log.
func (d *database) wantLost(t *testing.T, at capture.StartPoint, why string) {
	t.Helper()
	other := store.Checkpoint{Origin: "mysql/another", Position: at.Position}
	src := newSource(t, d.config())
	defer src.Close()
	got, err := src.LostReasons(t.Context(), []store.Checkpoint{at.Checkpoint, other})
	if err != nil || len(got) != 2 || (got[0] == "") != (why == "") || !strings.Contains(got[0], why) || got[1] != "" {
		t.Errorf("lost: got %q, %v, want %q", got, err, why)
	}
}

func TestHistory(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		capturetest.RunHistory(t, historyHarness(f, func(t *testing.T) string { return f.Database(t) }))
		t.Run("odd names", func(t *testing.T) {
			h := historyHarness(f, nil)
			h.Setup = func(t *testing.T) capturetest.Database {
				return newDatabaseOf(t, f, f.Database(t), ddl.MySQL().Quoted(), oddNames)
			}
			h.Delete = func(t *testing.T, db capturetest.Database, ids []string) {
				db.(*database).exec(t, "DELETE FROM `Out \"Box\"` WHERE `Order` IN ('"+strings.Join(ids, "', '")+"')")
			}
			capturetest.RunHistoryLayout(t, h)
		})
	})
}

func TestHistoryLost(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, map[string]string{"server-id": "2"})
		t.Run("a time after a purge", func(t *testing.T) { testHistoryAfterPurge(t, newDatabase(t, f, srv.Database())) })
		capturetest.RunHistoryLost(t, lostHistoryHarness(f, srv))
	})
}

// readAgain reads a range once more and returns its rows.
func (d *database) readAgain(t *testing.T, at capture.StartPoint, until store.Position) ([]string, error) {
	t.Helper()
	return capturetest.ReadRange(t, newSource(t, d.config()), at, until, nil)
}

// readSince reads from a time on, and returns the rows and the position at which the reading began.
func (d *database) readSince(t *testing.T, since time.Time, until store.Position) (ids string, from store.Position) {
	t.Helper()
	list, err := capturetest.ReadRange(t, newSource(t, d.config()), capture.StartPoint{Since: since}, until, func(b capture.Batch) {
		from = cmp.Or(from, b.Position)
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, ""), from
}

// testHistoryAfterPurge checks that a time before a purge is lost, and that a later time
// starts with the remaining log. Of files that were created long before it, only the last
// one is read.
func testHistoryAfterPurge(t *testing.T, d *database) {
	d.readOn(t, 3, "a")
	nextSecond()
	before := time.Now()
	d.exec(t, insert("b"))
	d.purge(t)
	d.exec(t, insert("c"))
	nextSecond()
	since := time.Now()
	d.exec(t, insert("d"))
	var rotated []time.Time // creation times of new files

	for _, id := range []string{"e", "f"} {
		d.exec(t, "FLUSH BINARY LOGS")
		nextSecond()
		rotated = append(rotated, time.Now())
		d.exec(t, insert(id))
	}

	fo, _, o := follow(t, d, d.config(), store.Checkpoint{})
	d.exec(t, insert("g"))
	fo.Rows(1)
	until := fo.Position
	fo.End()
	if ids, _ := d.readSince(t, since, until); strings.TrimPrefix(ids, "c") != "defg" { // c may be of the same second
		t.Errorf("got %q", ids)
	}
	for want, at := range map[string]time.Time{"cdefg": since, "efg": rotated[0].Add(time.Hour), "fg": rotated[1].Add(time.Hour)} {
		_, from := d.readSince(t, at, until)
		ids, err := d.readAgain(t, capture.StartPoint{Checkpoint: store.Checkpoint{Origin: o.Origin, Position: from}}, until)
		if err != nil || strings.Join(ids, "") != want {
			t.Errorf("the reading from %s begins before %q, %v, want %s", at, ids, err, want)
		}
	}

	var lost *capture.LostError
	if ids, err := d.readAgain(t, capture.StartPoint{Since: before}, until); !errors.As(err, &lost) || len(ids) > 0 {
		t.Errorf("got %q, %v, want a lost log", ids, err)
	}
}

// TestHistoryAfterTableChange checks that rows can be read again although the binlog also holds earlier rows
// that no longer fit their table. If they are wanted too, the log counts as lost.
func TestHistoryAfterTableChange(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		d := newDatabase(t, f, f.Database(t))
		fo, _, o := follow(t, d, d.config(), store.Checkpoint{})
		begin := capture.StartPoint{Checkpoint: store.Checkpoint{Origin: o.Origin, Position: o.From}}
		d.exec(t, insert("a"), insert("b"))
		fo.Rows(2)
		fo.End()
		nextSecond()
		nextSecond()
		since := time.Now()
		d.exec(t, "ALTER TABLE outbox_events ADD COLUMN extra int FIRST", insert("c"), insert("d"))
		fo, _, _ = follow(t, d, d.config(), store.Checkpoint{})
		d.exec(t, insert("e"))
		fo.Rows(1)
		until := fo.Position
		fo.End()

		for name, at := range map[string]capture.StartPoint{"a time": {Since: since}, "a position and a time": {Checkpoint: begin.Checkpoint, Since: since}} {
			if ids, err := d.readAgain(t, at, until); err != nil || strings.Join(ids, "") != "cde" {
				t.Errorf("%s: got %q, %v", name, ids, err)
			}
		}
		var lost *capture.LostError
		if ids, err := d.readAgain(t, begin, until); !errors.As(err, &lost) || !strings.Contains(lost.Reason, "predates a table change") || len(ids) > 0 {
			t.Errorf("the whole range: got %q, %v, want a lost log", ids, err)
		}
	})
}

// TestHistoryDomains checks that ranges are exact on MariaDB wherever they begin and end,
// because transactions of several domains have separate numbers, and a domain may begin
// inside a range.
func TestHistoryDomains(t *testing.T) {
	t.Parallel()
	f := servers.MariaDB
	d := newDatabase(t, f, f.Database(t))
	fo, _, o := follow(t, d, d.config(), store.Checkpoint{})
	places := []store.Position{o.From}
	var want []string
	for i, domain := range []int{0, 7, 3, 7, 0, 3, 9, 0, 7} {
		id := fmt.Sprintf("%d of %d", i, domain)
		conn, err := d.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range []string{fmt.Sprintf("SET SESSION gtid_domain_id = %d", domain), insert(id)} {
			if _, err := conn.ExecContext(t.Context(), statement); err != nil {
				t.Errorf("%s: %v", statement, err)
			}
		}
		_ = conn.Close() // ends the session
		fo.Rows(i + 1)
		places, want = append(places, fo.Position), append(want, id)
	}

	for _, part := range [][2]int{{0, 9}, {0, 2}, {1, 3}, {2, 7}, {4, 9}, {6, 7}, {5, 5}} {
		at := capture.StartPoint{Checkpoint: store.Checkpoint{Origin: o.Origin, Position: places[part[0]]}}
		ids, err := d.readAgain(t, at, places[part[1]])
		if err != nil || !slices.Equal(ids, want[part[0]:part[1]]) {
			t.Errorf("want %q, got %q, %v", want[part[0]:part[1]], ids, err)
		}
	}
}
