package mysql_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestMarkersFiltered checks that a filter is found that excludes only the markers'
// database.
func TestMarkersFiltered(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		srv := f.Start(t, map[string]string{"binlog-do-db": "shop_of_others"})
		d := newDatabase(t, f, srv.Database())
		d.exec(t, "CREATE DATABASE shop_of_others", "CREATE TABLE shop_of_others.outbox_events LIKE outbox_events")
		cfg := d.config()
		cfg.Outboxes[0].Schema = "shop_of_others"
		src := newSource(t, cfg)
		defer src.Close()
		err := ready(t, src)
		var no *capture.NoStreamError
		if !errors.As(err, &no) || !strings.Contains(no.Error(), "excludes database "+databaseOf(t, d.url)) {
			t.Errorf("%v, want a *capture.NoStreamError about the filter", err)
		}
	})
}

// TestSystemVersioned checks that system-versioned tables are refused, because MariaDB
// logs the old version of a row as an insert.
func TestSystemVersioned(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, servers.MariaDB, servers.MariaDB.Start(t, map[string]string{"binlog-row-metadata": "FULL"}).Database())
	fo, src, _ := follow(t, d, d.config(), store.Checkpoint{})
	d.exec(t, insert("a"))
	fo.Rows(1)
	d.exec(t, "ALTER TABLE outbox_events ADD SYSTEM VERSIONING", "UPDATE outbox_events SET status = 'COMPLETED'")
	err := fo.WaitEnd()
	var lost *capture.LostError
	if !errors.As(err, &lost) || !strings.Contains(lost.Reason, "system-versioned") {
		t.Errorf("the source ended with %v, want a lost log", err)
	}

	fo.Expect("a")
	err = ready(t, src)
	var no *capture.NoStreamError
	if !errors.As(err, &no) || !strings.Contains(no.Error(), "DROP SYSTEM VERSIONING") {
		t.Fatalf("%v, want a *capture.NoStreamError with a remedy", err)
	}

	d.exec(t, "ALTER TABLE outbox_events DROP SYSTEM VERSIONING")
	if err := ready(t, src); err != nil {
		t.Error(err)
	}
}

// testReplace checks a REPLACE that meets a row by another key than the id: the binlog
// has an update.
func testReplace(t *testing.T, f servers.Flavour, url string) {
	d := newDatabase(t, f, url)
	fo, src, _ := follow(t, d, d.config(), store.Checkpoint{})
	replace := func(id string) string {
		return "REPLACE INTO outbox_events (id, dedup, payload) VALUES ('" + id + "', 'k', 'payload of " + id + "')"
	}

	d.exec(t, "ALTER TABLE outbox_events ADD COLUMN dedup varchar(10) UNIQUE", replace("r1"), replace("r2"),
		"UPDATE outbox_events SET status = 'COMPLETED'", replace("r3"))
	if err := src.Mark(t.Context(), "end"); err != nil {
		t.Fatal(err)
	}

	fo.Until("the marker", func() bool { return len(fo.Marks) > 0 })
	fo.Expect("r1", "r2", "r3")
	fo.End()
	again := newSource(t, d.config()) // sees the key from the beginning
	defer again.Close()
	o := capturetest.OpenWithoutCheckpoint(t, again, d.tables())
	d.exec(t, "UPDATE outbox_events SET status = 'COMPLETED'", replace("r4"), "UPDATE outbox_events SET id = 'r5', payload = 'x'")
	if err := again.Mark(t.Context(), "end again"); err != nil {
		t.Fatal(err)
	}

	items := upToMark(t, again, o.From)
	if len(items) != 2 || items[0].ID != "r4" || string(items[0].Payload) != "payload of r4" || items[1].ID != "r5" {
		t.Errorf("got %+v", items)
	}
}
