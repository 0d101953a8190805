package mysql_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// alterations returns changes of an id column, each with an id from before the change and
// one that is only valid after it.
func alterations() map[string]struct{ from, to, before, after string } {
	return map[string]struct{ from, to, before, after string }{
		"bytes to text":    {"BINARY(4)", "VARCHAR(36)", "0x01020304", "uuid-1"},
		"larger integers":  {"INT", "BIGINT UNSIGNED", "7", "18446744073709551615"},
		"integers to text": {"INT", "VARCHAR(36)", "7", "a7"},
		"more decimals":    {"DECIMAL(20,0)", "DECIMAL(20,2)", "7", "8.25"},
		"text to bytes":    {"VARCHAR(8)", "VARBINARY(8)", "abc", "0xff61"},
	}
}

// TestAlteredTable checks that no session reports rows as gone after an ALTER TABLE that
// it has not seen.
func TestAlteredTable(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for what, c := range alterations() {
			t.Run(what, func(t *testing.T) {
				ddl := "DROP TABLE IF EXISTS outbox_events;\n" + strings.Replace(flowTable, "id VARCHAR(13)", "id "+c.from, 1)
				r := newRig(t, url, ddl, 0, flowBox())
				r.insertID(t, c.before)
				if a := r.claim(t, row(c.before))[0]; a.Result != store.Claimed {
					t.Fatalf("row %s is %s", c.before, a.Result)
				}

				r.settle(t, outcome(c.before, store.Completed))
				r.wantSettled(t, c.before, true)

				r.exec(t, "ALTER TABLE outbox_events MODIFY id "+c.to)
				r.insertID(t, c.after)
				r.wantSettled(t, c.after, false)
				for i, a := range r.claim(t, row(c.after), row(c.after)) {
					if a.Result != store.Claimed {
						t.Errorf("row %[2]d: got %[1]s", a.Result, i)
					}
				}

				if got := r.settle(t, outcome(c.after, store.Failed))[0]; got != store.Written {
					t.Errorf("outcome: got %d", got)
				}
				r.wantSettled(t, c.after, true)
				if n := r.countFailed(t); n != 1 {
					t.Errorf("got %d FAILED rows", n)
				}
			})
		}
	})
}

func (r *rig) countFailed(t *testing.T) int {
	t.Helper()
	return ask[int](t, r.db, "SELECT COUNT(*) FROM outbox_events WHERE status = 'FAILED'")
}

// insertID inserts a row with an id given as text.
func (r *rig) insertID(t *testing.T, id string) {
	t.Helper()
	value := "'" + id + "'"
	if strings.HasPrefix(id, "0x") {
		value = id
	}
	r.exec(t, "INSERT INTO outbox_events (id, payload) VALUES ("+value+", '{}')")
}

func (r *rig) wantSettled(t *testing.T, id string, want bool) {
	t.Helper()
	settled, err := r.store.ReadSettled(ctx(t), []store.ClaimRow{row(id)})
	if err != nil || settled[0] != want {
		t.Errorf("row %s is settled: %v, %v, want %v", id, settled, err, want)
	}
}

// TestAlteredBlocked checks that a blocked lane stays blocked after its table was
// altered.
func TestAlteredBlocked(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, strings.Replace(flowTable, "id VARCHAR(13)", "id INT", 1), 0, flowBox())
		holds := func() int {
			t.Helper()
			list, err := r.store.LoadHolds(ctx(t))
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}

		block := func(id, group string) {
			t.Helper()
			r.insert(t, id)
			o := outcome(id, store.Failed)
			o.Block = &store.Hold{Lane: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(group)}, Kind: store.Blocked, ID: id, Since: time.Now()}
			r.settle(t, o)
		}

		block("7", "a")
		if n := holds(); n != 1 {
			t.Fatalf("got %d holds", n)
		}
		r.exec(t, "ALTER TABLE outbox_events MODIFY id VARCHAR(20)")
		block("new-1", "b")
		if n := holds(); n != 2 {
			t.Errorf("got %d holds", n)
		}
	})
}

// TestExcludedDecimals checks that adjacent decimals that no floating-point number
// distinguishes are excluded one by one.
func TestExcludedDecimals(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, strings.Replace(flowTable, "id VARCHAR(13)", "id DECIMAL(20,0)", 1), 0, flowBox())
		const first, n = 1234567890123456710, 60 // far above 2^53
		var held []string
		for i := range n {
			id := fmt.Sprint(first + i)
			r.insert(t, id)
			if i%2 == 0 {
				held = append(held, id)
			}
		}

		for _, held := range [][]string{held, held[:1]} {
			view, err := r.store.View(ctx(t), "")
			if err != nil {
				t.Fatal(err)
			}
			items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 100, ExcludeIDs: held})
			view.Close()
			if err != nil || len(items) != n-len(held) {
				t.Errorf("got %d rows, %v, with %d of %d excluded", len(items), err, len(held), n)
			}
		}
	})
}

// TestZerofill checks that ids of ZEROFILL columns have no leading zeros.
func TestZerofill(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		seq := store.Seq(0)
		for typ, ids := range map[string][]string{
			"INT(10) UNSIGNED ZEROFILL": {"5", "6"}, "BIGINT(20) ZEROFILL": {"5", "18446744073709551615"}, "DECIMAL(20,2) ZEROFILL": {"5.00", "6.50"},
		} {
			t.Run(typ, func(t *testing.T) {
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;\n"+strings.Replace(flowTable, "id VARCHAR(13)", "id "+typ, 1), 0, flowBox())
				r.insert(t, ids...)
				seq++
				r.wantIDs(t, "", map[string]string{"one": ids[0], "other": ids[1]})
				it := store.Item{Ref: store.Ref{Outbox: "events", ID: ids[1]}, Kind: "EVENT", Seq: seq}
				if err := r.store.Spill(ctx(t), r.epoch, []store.Item{it}); err != nil {
					t.Fatal(err)
				}

				view, err := r.store.View(ctx(t), "")
				if err != nil {
					t.Fatal(err)
				}

				items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 9})
				view.Close()
				if err != nil || len(items) != 1 || items[0].ID != ids[0] {
					t.Errorf("with a spilled row: got %+v, %v", items, err)
				}

				for i, a := range r.claim(t, row(ids[0]), row(ids[1])) {
					if a.Result != store.Claimed {
						t.Errorf("row %s is %s", ids[i], a.Result)
					}
				}
			})
		}
	})
}

// TestHiddenIndex checks that no statement names an index that is invisible to the
// optimizer.
func TestHiddenIndex(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		hide := "IGNORED"
		if strings.HasPrefix(url, "mysql:") {
			hide = "INVISIBLE"
		}
		ddl := strings.Replace(flowTable, "id VARCHAR(13) PRIMARY KEY", "no INT AUTO_INCREMENT PRIMARY KEY, id VARCHAR(13) NOT NULL, UNIQUE KEY a_hidden (id) "+hide+", UNIQUE KEY b_used (id)", 1)
		r := newRig(t, url, ddl, 0, flowBox())
		r.insert(t, "1")
		if a := r.claim(t, row("1"))[0]; a.Result != store.Claimed {
			t.Errorf("row: got %s", a.Result)
		}
		r.settle(t, outcome("1", store.Completed))
		r.exec(t, "ALTER TABLE outbox_events DROP INDEX b_used")
		rigs.WantSetup(t, "no other", r.store.Check(ctx(t)), "CREATE UNIQUE INDEX")
	})
}

// TestLockedTables checks that locks on two whole tables delay a claim by seconds, and
// that the same call claims rows of a third table. ReadSettled reports nothing about the
// locked tables.
func TestLockedTables(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		var boxes []store.Outbox
		var ddl []string
		var rows []store.ClaimRow
		for _, name := range []string{"a", "b", "c"} {
			box := flowBox()
			box.Name, box.Table = name, "outbox_"+name
			boxes = append(boxes, box)
			ddl = append(ddl, strings.Replace(flowTable, "outbox_events", box.Table, 1))
		}

		r := newRig(t, url, strings.Join(ddl, ";\n"), 0, boxes...)
		for _, box := range boxes {
			for i := range 20 {
				id := fmt.Sprint(i)
				if i < 10 { // the others do not exist
					r.exec(t, "INSERT INTO "+box.Table+" (id, payload) VALUES (?, '{}')", id)
				}
				rows = append(rows, store.ClaimRow{Ref: store.Ref{Outbox: box.Name, ID: id}, WantPayload: i%2 == 0})
			}
		}

		for _, mode := range []string{"WRITE", "READ"} {
			t.Run(mode, func(t *testing.T) { r.wantOthersClaimed(t, rows, "LOCK TABLES outbox_a "+mode+", outbox_b "+mode) })
		}
	})
}

// TestClaimWaitsOnceForLockedTable checks that a claim of rows of two tables, one of them
// locked, takes no longer than a claim of the locked table's rows alone, with and without
// the locking read: the session knows the part at which it waited.
func TestClaimWaitsOnceForLockedTable(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		a, b := flowBox(), flowBox()
		b.Name, b.Table = "free", "outbox_free"
		r := newRig(t, url, flowTable+";\n"+strings.Replace(flowTable, "outbox_events", b.Table, 1), 0, a, b)
		conn, err := r.db.Conn(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()

		if _, err := conn.ExecContext(ctx(t), "LOCK TABLES outbox_events READ, outbox_free WRITE"); err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			if _, err := conn.ExecContext(ctx(t), "INSERT INTO outbox_free (id, payload) VALUES (?, '{}')", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}

		if _, err := conn.ExecContext(ctx(t), "LOCK TABLES outbox_events READ"); err != nil {
			t.Fatal(err)
		}
		claim := func(rows ...store.ClaimRow) (took time.Duration, answers []store.ClaimAnswer) {
			began := time.Now()
			answers = r.claim(t, rows...)
			return time.Since(began), answers
		}

		locked := store.ClaimRow{Ref: store.Ref{Outbox: a.Name, ID: "1"}}
		alone, _ := claim(locked)
		for i, looks := range []bool{false, true} {
			locked.WantPayload = looks
			free := func(n int) store.ClaimRow {
				return store.ClaimRow{Ref: store.Ref{Outbox: b.Name, ID: fmt.Sprint(2*i + n)}, WantPayload: looks}
			}
			took, answers := claim(free(0), locked, free(1))
			if answers[0].Result != store.Claimed || answers[1].Result != store.TableLocked || answers[2].Result != store.Claimed {
				t.Errorf("with a lookup %t: got %+v", looks, answers)
			}
			if took > alone+alone/2 {
				t.Errorf("with a lookup %t: the claim took %s, a claim of the locked table alone %s", looks, took, alone)
			}
		}
	})
}

// wantOthersClaimed claims rows and reads settled ones while tables a and b are locked.
func (r *rig) wantOthersClaimed(t *testing.T, rows []store.ClaimRow, lock string) {
	t.Helper()
	conn, err := r.db.Conn(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(ctx(t), lock); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := conn.ExecContext(ctx(t), "UNLOCK TABLES"); err != nil {
			t.Error(err)
		}
	}()

	began := time.Now()
	for i, a := range r.claim(t, rows...) {
		want := store.TableLocked
		switch {
		case rows[i].Outbox == "c" && i%20 < 10:
			want = store.Claimed
		case rows[i].Outbox == "c":
			want = store.Gone
		}
		if a.Result != want {
			t.Errorf("row %s is %s, want %s", rows[i].Ref, a.Result, want)
		}
	}

	if took := time.Since(began); took > 8*time.Second { // 2 s before it stops waiting, and 2 s for each
		t.Errorf("the claim took %s", took)
	}
	began = time.Now()
	settled, err := r.store.ReadSettled(ctx(t), rows)
	if err != nil {
		t.Fatal(err)
	}

	for i, is := range settled {
		if want := rows[i].Outbox == "c" && i%20 >= 10; is != want {
			t.Errorf("row %s is settled: %v", rows[i].Ref, is)
		}
	}

	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("ReadSettled took %s", took)
	}
}
