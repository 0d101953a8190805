package mysql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// idTypes returns types of ids, each with SQL values and the text of the id for each
// value.
func idTypes() map[string]map[string]string {
	return map[string]map[string]string{
		"BINARY(16)":                       {"0x00112233445566778899AABBCCDDEEFF": "0x00112233445566778899aabbccddeeff", "0x0011223344556677889900AABBCCDD00": "0x0011223344556677889900aabbccdd00", "0x41": "0x41" + strings.Repeat("00", 15)},
		"VARBINARY(20)":                    {"'a'": "0x61", "'A'": "0x41", "'a '": "0x6120", "0x00": "0x00", "''": "0x"},
		"BIGINT UNSIGNED":                  {"18446744073709551615": "18446744073709551615", "0": "0", "9007199254740993": "9007199254740993"},
		"BIGINT":                           {"-9223372036854775808": "-9223372036854775808", "9007199254740993": "9007199254740993"},
		"TINYINT":                          {"-128": "-128", "7": "7"},
		"INT(8) UNSIGNED ZEROFILL":         {"42": "42"},
		"DECIMAL(30,2)":                    {"1234567890123456789012345678.50": "1234567890123456789012345678.50", "-0.05": "-0.05", "3": "3.00"},
		"CHAR(8)":                          {"'a'": "a", "'bc'": "bc", "'☃'": "☃"},
		"CHAR(36) CHARACTER SET ascii":     {"'6f9619ff-8b86-d011-b42d-00c04fc964ff'": "6f9619ff-8b86-d011-b42d-00c04fc964ff"},
		"VARCHAR(30) CHARACTER SET latin1": {"'ünï'": "ünï", "'a'": "a"},
		"VARCHAR(30) CHARACTER SET utf8mb3 COLLATE utf8mb3_general_ci": {"'☃'": "☃", "'x'": "x"},
		"VARCHAR(30) COLLATE utf8mb4_bin":                              {"'a'": "a", "'A'": "A", "'ä'": "ä"},
		"VARCHAR(30) COLLATE utf8mb4_general_ci":                       {"'a'": "a", "'B'": "B", "'𝄞'": "𝄞"},
		"VARCHAR(30) CHARACTER SET utf16":                              {"'a'": "a", "'☃𝄞'": "☃𝄞"},
	}
}

// TestIDTypes checks that rows with every type of id are claimed, settled, looked up,
// read and requeued by the text of their id, and by no other text.
func TestIDTypes(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for typ, values := range idTypes() {
			t.Run(typ, func(t *testing.T) {
				box := flowBox()
				box.Layout.Record = []store.RecordColumn{{Receipt: "place", Column: "place"}}
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;\n"+strings.Replace(flowTable, "VARCHAR(13)", typ, 1)+";\nALTER TABLE outbox_events ADD place VARCHAR(40) CHARACTER SET utf8mb4", 0, box)
				for value := range values {
					r.exec(t, "INSERT INTO outbox_events (id, payload) VALUES ("+value+", 'x')")
				}
				r.wantIDs(t, "", values)
				for _, id := range values {
					r.wantRow(t, id)
				}
				r.wantReceipts(t, typ, values)
				for _, id := range []string{"", "no", "0x4", "0xzz", "1e3", "00042", "+7", "-0", " 7", "7 ", "A ", "𝄞☃", "0X41", "3.0", "' OR 1=1 --", "99999999999999999999999", "b\xff"} {
					if !isValue(values, id) {
						r.wantNoRow(t, id)
					}
				}
			})
		}
	})
}

func isValue(values map[string]string, id string) bool {
	for _, v := range values {
		if v == id {
			return true
		}
	}
	return false
}

// wantIDs reads the unsettled rows, excluding one.
func (r *rig) wantIDs(t *testing.T, held string, values map[string]string) {
	t.Helper()
	view, err := r.store.View(ctx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	q := store.UnsettledQuery{Outbox: "events", Limit: 100}
	if held != "" {
		q.ExcludeIDs = []string{held}
	}

	items, err := view.Unsettled(ctx(t), q)
	if err != nil {
		t.Fatal(err)
	}

	got := map[string]bool{}
	for _, it := range items {
		got[it.ID] = true
	}

	for value, id := range values {
		if got[id] == (id == held) {
			t.Errorf("row %s: want id %q unless excluded, got %v", value, id, got)
		}
	}
}

// wantRow takes a row through all its states by an id.
func (r *rig) wantRow(t *testing.T, id string) {
	t.Helper()
	if a := r.claim(t, row(id))[0]; a.Result != store.Claimed || string(a.Payload) != "x" {
		t.Errorf("row %q is %s with %q", id, a.Result, a.Payload)
	}

	if got := r.settle(t, outcome(id, store.Failed))[0]; got != store.Written {
		t.Errorf("row %q FAILED: %d", id, got)
	}
	if settled, err := r.store.ReadSettled(ctx(t), []store.ClaimRow{row(id)}); err != nil || !settled[0] {
		t.Errorf("row %q is settled: %v, %v", id, settled, err)
	}

	f := store.DeadLetterFilter{Outbox: "events", IDs: []string{id}}
	if items, err := r.store.Requeue(ctx(t), r.epoch, f, 9); err != nil || len(items) != 1 || items[0].ID != id {
		t.Errorf("row %q was requeued: %v, %v", id, items, err)
	}

	r.wantIDs(t, id, map[string]string{"the row itself": id})
	it := store.Item{Ref: store.Ref{Outbox: "events", ID: id}, Kind: "EVENT", Seq: 7}
	if err := r.store.Spill(ctx(t), r.epoch, []store.Item{it}); err != nil {
		t.Fatal(err)
	}

	r.wantIDs(t, id, map[string]string{"the spilled row": id})
	o := outcome(id, store.Completed)
	o.SpilledSeq = 7
	if got := r.settle(t, o)[0]; got != store.Written {
		t.Errorf("row %q COMPLETED: %d", id, got)
	}

	err := r.store.SpilledLanes(ctx(t), func(l store.SpilledLane) { t.Errorf("row %q is still spilled: %v", id, l) })
	if err != nil {
		t.Error(err)
	}
}

// wantReceipts completes all rows in one call, each with its id as the receipt.
func (r *rig) wantReceipts(t *testing.T, typ string, values map[string]string) {
	t.Helper()
	r.exec(t, "UPDATE outbox_events SET status = 'PENDING'")
	var call []store.Outcome
	for _, id := range values {
		o := outcome(id, store.Completed)
		o.Receipt = []store.Receipt{{Name: "place", Value: id}}
		call = append(call, o)
	}
	r.settle(t, call...)
	for value, id := range values {
		if typ == "BINARY(16)" { // the column pads it
			value = "CAST(" + value + " AS BINARY(16))"
		}
		if got := ask[string](t, r.db, "SELECT COALESCE(place, 'NULL') FROM outbox_events WHERE id = "+value); got != id {
			t.Errorf("row %s: got receipt %q, want %q", value, got, id)
		}
	}
}

// wantNoRow claims, settles and counts an id that no row has.
func (r *rig) wantNoRow(t *testing.T, id string) {
	t.Helper()
	if a := r.claim(t, row(id))[0]; a.Result != store.Gone {
		t.Errorf("row %q is %s", id, a.Result)
	}

	for _, status := range []store.Status{store.Completed, store.Failed, store.Pending} {
		if got := r.settle(t, outcome(id, status))[0]; got != store.WasGone {
			t.Errorf("row %q %s: %d", id, status, got)
		}
	}

	f := store.DeadLetterFilter{Outbox: "events", IDs: []string{id}}
	if n, err := r.store.CountFailed(ctx(t), f); err != nil || n != 0 {
		t.Errorf("rows %q: %d, %v", id, n, err)
	}
}

// TestOtherCase checks that an outcome for a deleted row does not change another row that
// the column's collation treats as equal.
func TestOtherCase(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, strings.Replace(flowTable, "VARCHAR(13)", "VARCHAR(13) COLLATE utf8mb4_general_ci", 1), 0, flowBox())
		r.insert(t, "Abc")
		for _, id := range []string{"abc", "ABC", "Äbc", "Abc "} {
			r.wantNoRow(t, id)
		}
		if got := r.status(t, "Abc"); got != "PENDING" {
			t.Errorf("the row is %s", got)
		}
		if settled, err := r.store.ReadSettled(ctx(t), []store.ClaimRow{row("abc"), row("Abc")}); err != nil || !settled[0] || settled[1] {
			t.Errorf("settled: %v, %v", settled, err)
		}
		r.wantIDs(t, "", map[string]string{"it": "Abc"})
		r.wantIDs(t, "ABC", map[string]string{"it": "Abc"})
	})
}

// TestTimePrecision checks that times keep the precision of their column, whatever its type, and
// that a leader recognizes its own claims.
func TestTimePrecision(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for _, typ := range []string{"DATETIME", "DATETIME(3)", "DATETIME(6)", "TIMESTAMP NULL", "TIMESTAMP(2) NULL", "TIMESTAMP(6) NULL"} {
			t.Run(typ, func(t *testing.T) {
				ddl := strings.Replace(flowTable, "processed_at TIMESTAMP NULL", "processed_at "+typ, 1)
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;\n"+ddl, time.Hour, flowBox())
				r.insert(t, "1")
				at := time.Now().Add(-time.Minute).Truncate(time.Second).Add(999_999_999)
				for i, own := range []time.Time{{}, at} {
					a, err := r.store.Claim(ctx(t), r.epoch, at, []store.ClaimRow{{Ref: row("1").Ref, OwnClaimAt: own}})
					if err != nil || a[0].Result != store.Claimed {
						t.Errorf("claim %d: %+v, %v", i, a, err)
					}
				}

				a := r.claim(t, row("1"))[0]
				if left := time.Until(a.Until); a.Result != store.Held || left > time.Hour-50*time.Second || left < time.Hour-70*time.Second {
					t.Errorf("another processor's claim: got %s for %s", a.Result, left)
				}

				kept := ask[string](t, r.db, "SELECT CONVERT_TZ(processed_at, @@session.time_zone, '+00:00') FROM outbox_events")
				if want := at.UTC().Format("2006-01-02 15:04:05"); !strings.HasPrefix(kept, want) {
					t.Errorf("time: got %s, want %s", kept, want)
				}
			})
		}
	})
}

// TestPayloads checks that payloads of every type arrive unchanged, by every path.
func TestPayloads(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for typ, want := range map[string]string{
			"LONGBLOB": "\x00\xff bytes", "VARBINARY(20)": "\x00\x01", "LONGTEXT": `ünï ☃ 𝄞 '"\`, "TEXT CHARACTER SET latin1": "ünï", "JSON": `{"a": [1, "☃"]}`, "MEDIUMTEXT": "",
			"MEDIUMBLOB": strings.Repeat("\x00\xff\xc3(", 10<<18), // 10 MiB
		} {
			t.Run(typ, func(t *testing.T) {
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;\n"+strings.Replace(flowTable, "payload LONGTEXT", "payload "+typ, 1), 0, flowBox())
				value := any(want)
				if strings.Contains(typ, "B") && typ[0] != 'T' {
					value = []byte(want)
				}

				r.exec(t, "INSERT INTO outbox_events (id, payload) VALUES ('1', ?)", value)
				view, err := r.store.View(ctx(t), "")
				if err != nil {
					t.Fatal(err)
				}
				defer view.Close()
				for _, most := range []int{0, len(want) - 1, len(want)} {
					items, err := view.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 2, MaxPayload: most})
					if err != nil || len(items) != 1 || items[0].PayloadSize != len(want) || string(items[0].Payload) != want && most != len(want)-1 {
						t.Errorf("read with payloads up to %d: got %+v, %v", most, items, err)
					}
				}

				if a := r.claim(t, row("1"))[0]; string(a.Payload) != want || a.Payload == nil {
					t.Errorf("claimed with %q", a.Payload)
				}
				r.settle(t, outcome("1", store.Failed))
				letters, err := r.store.Failed(ctx(t), store.DeadLetterFilter{Outbox: "events"}, 2, true)
				if err != nil || len(letters) != 1 || string(letters[0].Payload) != want || letters[0].PayloadSize != len(want) {
					t.Errorf("FAILED: %+v, %v", letters, err)
				}
			})
		}
	})
}

// TestCheckTypes checks that Check reports columns that cannot hold the relay's values.
func TestCheckTypes(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for change, part := range map[string]string{
			"id VARCHAR(13) PRIMARY KEY=>id DOUBLE PRIMARY KEY":                                               "not exact",
			"id VARCHAR(13) PRIMARY KEY=>id VARCHAR(13)":                                                      "CREATE UNIQUE INDEX",
			"id VARCHAR(13) PRIMARY KEY=>id VARCHAR(13), KEY (id)":                                            "CREATE UNIQUE INDEX",
			"id VARCHAR(13) PRIMARY KEY=>id VARCHAR(13), PRIMARY KEY (id, type)":                              "CREATE UNIQUE INDEX",
			"processed_at TIMESTAMP NULL=>processed_at VARCHAR(30)":                                           "DATETIME",
			"status VARCHAR(20) NOT NULL DEFAULT 'PENDING'=>status VARCHAR(7)":                                `cannot hold "PROCESSING"`,
			"status VARCHAR(20) NOT NULL DEFAULT 'PENDING'=>status ENUM('PENDING')":                           `cannot hold "COMPLETED"`,
			"status VARCHAR(20) NOT NULL DEFAULT 'PENDING'=>status INT":                                       "a text or an ENUM",
			"retry_count INT NOT NULL DEFAULT 0=>retry_count VARCHAR(9)":                                      "an integer",
			"error_message TEXT=>error_message BLOB":                                                          "a text",
			",\n    INDEX idx_outbox_events_status (status, message_group, created_at)\n)=>\n) ENGINE=MyISAM": "ENGINE = InnoDB",
		} {
			from, to, _ := strings.Cut(change, "=>")
			ddl := strings.Replace(flowTable, from, to, 1)
			if ddl == flowTable {
				t.Fatalf("%q changes nothing", change)
			}
			rigs.WantSetup(t, to, newTables(t, url, ddl).Check(ctx(t)), part)
		}
	})
}

// newTables recreates the table and returns a store that has installed the relay's
// tables.
func newTables(t *testing.T, url, ddl string) *mysql.Store {
	t.Helper()
	servers.ExecMySQL(t, url, "DROP TABLE IF EXISTS outbox_events", ddl)
	st := openStore(t, url, 0, flowBox())
	if err := st.Install(ctx(t)); err != nil {
		t.Fatal(err)
	}
	return st
}

// TestExcludedLaneCollations checks that lanes are excluded one by one even if the table's
// types and collations treat them as equal.
func TestExcludedLaneCollations(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		for _, typ := range []string{
			"VARCHAR(20) COLLATE utf8mb4_general_ci", "VARCHAR(20) COLLATE utf8mb4_bin", "CHAR(9)", "VARBINARY(20)", "BLOB",
			"VARCHAR(20) CHARACTER SET latin1", "JSON", "VARCHAR(20) CHARACTER SET utf16",
		} {
			t.Run(typ, func(t *testing.T) {
				r := newRig(t, url, "DROP TABLE IF EXISTS outbox_events;\n"+
					strings.Replace(strings.Replace(flowTable, "message_group VARCHAR(255)", "message_group "+typ, 1), "    INDEX idx_outbox_events_status (status, message_group, created_at)", "    INDEX (status)", 1), 0, flowBox())
				for i, group := range []any{`"a"`, `"A"`, nil, `"a "`, `""`, `"é"`, `"e"`} {
					r.exec(t, "INSERT INTO outbox_events (id, payload, message_group) VALUES (?, '{}', ?)", i, group)
				}
				rigs.CheckExcludeLanes(t, r.store, 7)
			})
		}
	})
}
