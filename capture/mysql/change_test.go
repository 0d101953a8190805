package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// testSchemaChanges changes the table while the binlog is read.
func testSchemaChanges(t *testing.T, f servers.Flavour, url string) {
	d := newDatabase(t, f, url)
	fo, _, _ := follow(t, d, d.config(), store.Checkpoint{})
	changes := []string{
		"ALTER TABLE outbox_events ADD COLUMN first_one varchar(20) NOT NULL DEFAULT 'x' FIRST",
		"ALTER TABLE outbox_events ADD COLUMN n int NOT NULL DEFAULT 7 AFTER id, DROP COLUMN error_message",
		"ALTER TABLE outbox_events MODIFY payload mediumblob",
		"ALTER TABLE outbox_events MODIFY COLUMN message_group varchar(100) CHARACTER SET latin1 FIRST",
		"CREATE TABLE other LIKE outbox_events; RENAME TABLE outbox_events TO old, other TO outbox_events",
		"DROP TABLE outbox_events; " + createTable,
	}

	want := []string{"r0"}
	d.exec(t, insert("r0"))
	fo.Rows(1) // before the first change: a binlog without column names could not give it behind it
	for i, change := range changes {
		d.exec(t, change, insert(fmt.Sprintf("r%d", i+1)))
		want = append(want, fmt.Sprintf("r%d", i+1))
		fo.Rows(len(want)) // one change at a time
	}

	fo.Expect(want...)
	for i := range fo.Items {
		if it := &fo.Items[i]; string(it.Payload) != "payload of "+it.ID || it.Group.Name != "g" || it.RetryCount != 0 {
			t.Errorf("%+v", it)
		}
	}
}

// testRowsBeforeSchemaChange checks rows from before a change that the relay did not read in
// time. If the binlog names the columns they arrive, otherwise the snapshot finds them in
// the table.
func testRowsBeforeSchemaChange(t *testing.T, f servers.Flavour, url string) {
	d := newDatabase(t, f, url)
	o, err := d.opening(t, store.Checkpoint{})
	if err != nil {
		t.Fatal(err)
	}

	d.exec(t, insert("before"), "ALTER TABLE outbox_events ADD COLUMN n int FIRST", insert("after"))
	fo, _, again := follow(t, d, d.config(), store.Checkpoint{Origin: o.Origin, Position: o.From})
	if again.SnapshotReason != "" {
		t.Fatal(again.SnapshotReason)
	}

	if strings.HasSuffix(t.Name(), "FULL") {
		fo.Rows(2)
		fo.Expect("before", "after")
		return
	}

	var lost *capture.LostError
	if err := fo.WaitEnd(); !errors.As(err, &lost) {
		t.Fatalf("the source ended with %v, want a lost log", err)
	}

	t.Log(lost)
	fo.Expect()
}

// testDroppedColumn drops a column that the layout names: an operator must decide.
func testDroppedColumn(t *testing.T, f servers.Flavour, url string) {
	d := newDatabase(t, f, url)
	fo, _, _ := follow(t, d, d.config(), store.Checkpoint{})
	d.exec(t, "ALTER TABLE outbox_events DROP COLUMN message_group", "INSERT INTO outbox_events (id, payload) VALUES ('a', 'b')")
	err := fo.WaitEnd()
	var setup *store.SetupError
	if !errors.As(err, &setup) || !strings.Contains(setup.Problem, "`message_group`") {
		t.Errorf("the source ended with %v", err)
	}
}

// testGeneratedColumns checks that the binlog contains generated columns.
func testGeneratedColumns(t *testing.T, f servers.Flavour, url string) {
	for _, how := range []string{"STORED", "VIRTUAL"} {
		t.Run(how, func(t *testing.T) {
			d := newDatabaseOf(t, f, url, strings.Replace(createTable, "message_group varchar(255)",
				"message_group varchar(255) GENERATED ALWAYS AS (concat('group of ', id)) "+how, 1), outboxes)
			defer d.exec(t, "DROP TABLE outbox_events, unrelated")
			src := newSource(t, d.config())
			defer src.Close()
			o := capturetest.OpenWithoutCheckpoint(t, src, d.tables())
			d.exec(t, "INSERT INTO outbox_events (id, payload) VALUES ('a', 'x')")
			if err := src.Mark(t.Context(), "end-"+strings.ToLower(how)); err != nil {
				t.Fatal(err)
			}
			items := upToMark(t, src, o.From)
			if len(items) != 1 || items[0].Group.Name != "group of a" || string(items[0].Payload) != "x" {
				t.Errorf("got %+v", items)
			}
		})
	}
}

// testHiddenColumns checks a table with columns that the server does not show. It can be
// read if the binlog names the columns; otherwise the relay says so and does not take
// snapshot after snapshot.
func testHiddenColumns(t *testing.T, f servers.Flavour, url string) {
	if f == servers.MariaDB {
		return // only system-versioned tables have hidden columns there, see TestSystemVersioned
	}
	create := "SET SESSION sql_generate_invisible_primary_key = ON; SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF; " +
		strings.Replace(createTable, "id varchar(64) PRIMARY KEY", "id varchar(64) NOT NULL", 1)

	t.Cleanup(func() { servers.ExecMySQL(t, url, "SET GLOBAL show_gipk_in_create_table_and_information_schema = ON") })
	d := newDatabaseOf(t, f, url, create, outboxes)
	for try := range 3 {
		fo, src, _ := follow(t, d, d.config(), store.Checkpoint{})
		d.exec(t, insert(fmt.Sprint("row-", try)))
		if strings.HasSuffix(t.Name(), "FULL") {
			fo.Rows(1)
			fo.Expect(fmt.Sprint("row-", try))
			fo.End()
			continue
		}

		err := fo.WaitEnd()
		t.Log(err)
		var lost *capture.LostError
		if !errors.As(err, &lost) {
			t.Fatalf("the source ended with %v", err)
		}

		// The same source again, as in a relay.
		o := capturetest.OpenWithoutCheckpoint(t, src, d.tables())
		d.exec(t, insert(fmt.Sprint("again-", try)))
		err = src.Run(t.Context(), capture.Span{From: o.From}, make(chan capture.Batch))
		var no *capture.NoStreamError
		if !errors.As(err, &no) || !strings.Contains(no.Error(), "binlog_row_metadata = 'FULL'") {
			t.Errorf("the second time it ended with %v", err)
		}

		return
	}
}

// TestCompressedColumn checks that MariaDB's COMPRESSED columns are refused before the
// first row.
func TestCompressedColumn(t *testing.T) {
	t.Parallel()
	d := newDatabaseOf(t, servers.MariaDB, servers.MariaDB.Database(t), strings.Replace(createTable, "payload longtext", "payload longtext COMPRESSED", 1), outboxes)
	_, err := d.opening(t, store.Checkpoint{})
	var no *capture.NoStreamError
	if !errors.As(err, &no) || !strings.Contains(no.Error(), "`payload`") {
		t.Errorf("%v", err)
	}
}

// TestUnreadableColumns checks that unreadable types and charsets are refused before the
// first row.
func TestUnreadableColumns(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		for _, typ := range []string{"double", "longtext CHARACTER SET sjis"} {
			d := newDatabaseOf(t, f, f.Database(t), strings.Replace(createTable, "payload longtext", "payload "+typ, 1), outboxes)
			_, err := d.opening(t, store.Checkpoint{})
			var no *capture.NoStreamError
			if !errors.As(err, &no) || !strings.Contains(no.Error(), "`payload`") {
				t.Errorf("%s: %v", typ, err)
			}
		}
	})
}
