package mysql_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/ledgertest"
	"github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestLedger runs the suite of the ledger's backends.
func TestLedger(t *testing.T) {
	t.Parallel()
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			ledgertest.Run(t, func(t *testing.T) ledgertest.Database {
				d := ledgerDatabase{f.Database(t)}
				if err := d.store(t, "first").Install(ctx(t)); err != nil {
					t.Fatal(err)
				}
				return d
			})
		})
	}
}

type ledgerDatabase struct{ url string }

type ledgerBackend struct {
	ledger.Backend
	store.Leadership
}

// Open implements ledgertest.Database.
func (d ledgerDatabase) Open(t testing.TB, relay string) ledgertest.Backend {
	st := d.store(t, relay)
	return ledgerBackend{st.Backend(), st}
}

func (d ledgerDatabase) store(t testing.TB, relay string) *mysql.Store {
	t.Helper()
	st, err := mysql.New(mysql.Config{URL: d.url, Name: relay, Outboxes: []store.Outbox{flowBox()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

// TestOperatorViews checks that the views show replays and spilled rows. Without the right to
// create views a relay installs its tables alone.
func TestOperatorViews(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		rigs.EndJob(t, r.store, r.epoch, "events", "job", store.JobDone)
		item := store.Item{Ref: store.Ref{Outbox: "events", ID: "ü☃"}, Kind: "EVENT", Group: store.GroupOf("g'"), Seq: 7, PayloadSize: 5}
		if err := r.store.Spill(ctx(t), r.epoch, []store.Item{item}); err != nil {
			t.Fatal(err)
		}
		if got := ask[string](t, r.db, "SELECT CONCAT_WS(' ', name, job, state, desired, refused, finished_at IS NOT NULL) FROM sluicebox_jobs"); got != "rig job done run 1 1" {
			t.Errorf("replays: got %s", got)
		}
		if got := ask[string](t, r.db, "SELECT CONCAT_WS(' ', name, outbox, kind, message_group, seq, id, payload_size) FROM sluicebox_spilled"); got != "rig events EVENT g' 7 ü☃ 5" {
			t.Errorf("spilled rows: got %s", got)
		}

		r.exec(t, "DROP VIEW sluicebox_jobs, sluicebox_spilled")
		r.exec(t, "DROP TABLE sluicebox_queue")
		relay, account := asAccount(t, url, "secret")
		for _, table := range []string{"meta", "leader", "record", "queue", "replay", "marker"} {
			r.exec(t, "GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON sluicebox_"+table+" TO "+account)
		}
		if err := openStore(t, relay, 0, flowBox()).Install(ctx(t)); err != nil {
			t.Errorf("install without CREATE VIEW: %v", err)
		}
		if n := ask[int](t, r.db, "SELECT COUNT(*) FROM information_schema.views WHERE table_schema = DATABASE()"); n != 0 {
			t.Errorf("got %d views of an account that may create none", n)
		}
	})
}

// TestViewIncludesManySpilledRows checks that a view shows spilled rows that are to be included, if there are
// more of them than one statement takes.
func TestViewIncludesManySpilledRows(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			box := flowBox()
			box.Routes = []store.Route{{Name: "bus"}, {Name: "hooks"}}
			r := newRig(t, f.Start(t, map[string]string{"max-allowed-packet": "1M"}).Database(), flowTable, 0, box)
			names := []string{"1", "2", "3"}
			for _, id := range names {
				r.insertID(t, id)
			}
			items, records := make([]store.Item, 2), make([]store.LegRow, 2)
			for i := range items {
				items[i] = store.Item{Ref: store.Ref{Outbox: "events/hooks", ID: names[i]}, Kind: "EVENT", Seq: store.Seq(i + 1)}
				records[i] = store.LegRow{Ref: store.Ref{Outbox: "events", ID: names[i]}, Matched: []string{"bus", "hooks"}, Spilled: []string{"hooks"}}
			}
			if err := r.store.SpillLegs(ctx(t), r.epoch, items, records); err != nil {
				t.Fatal(err)
			}
			v, err := r.store.View(ctx(t), "")
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			include := []string{names[1]}
			for i := range 20_000 {
				include = append(include, fmt.Sprintf("%036d", i))
			}
			for n, want := range map[int][]string{0: names[2:], 1: names[1:], len(include): names[1:]} {
				got, err := v.Unsettled(ctx(t), store.UnsettledQuery{Outbox: "events", Limit: 10, IncludeSpilled: include[:n]})
				if err != nil {
					t.Fatal(err)
				}
				var ids []string
				for _, it := range got {
					ids = append(ids, it.ID)
				}
				if !slices.Equal(ids, want) {
					t.Errorf("with %d ids: got rows %v, want %v", n, ids, want)
				}
			}
		})
	}
}

// TestHugePayloads checks that a row above max_allowed_packet is spilled with an error that
// names the setting, because only the log may have its payload. A replay goes without the
// payload.
func TestHugePayloads(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			box := flowBox()
			box.Layout = store.Layout{Name: "plain", State: store.StateNone, Columns: store.Columns{ID: "id", Kind: "type", Group: "message_group", Payload: "payload"}}
			r := newRig(t, f.Start(t, map[string]string{"max-allowed-packet": "4M"}).Database(), flowTable, 0, box)
			if err := r.store.RequestReplay(ctx(t), "job", "{}"); err != nil {
				t.Fatal(err)
			}
			for seq, size := range []int{0, 3 << 20, 5 << 20, 100} {
				it := store.Item{Ref: store.Ref{Outbox: "events", ID: "1"}, Kind: "EVENT", Seq: store.Seq(seq + 1), Payload: []byte(strings.Repeat("\xff", size)), PayloadSize: size}
				fits := size <= 4<<20
				err := r.store.Spill(ctx(t), r.epoch, []store.Item{it})
				var refused *store.RefusedError
				if fits && err != nil || !fits && (!errors.As(err, &refused) || !strings.Contains(err.Error(), "max_allowed_packet")) {
					t.Errorf("spilling %d bytes: %v", size, err)
				}
				if err := r.store.CopyRows(ctx(t), r.epoch, "job", []store.ReplayRow{{N: int64(it.Seq), Item: it}}, store.ReplayCursor{}); err != nil {
					t.Errorf("copying %d bytes: %v", size, err)
				}
			}

			hash := store.LaneKey{Outbox: "events", Kind: "EVENT"}.Hash()
			rows, err := r.store.ReplayRows(ctx(t), "job", []store.ReplayRange{{Outbox: "events", Lane: hash}}, 9)
			if err != nil {
				t.Fatal(err)
			}
			var sizes []int
			for _, row := range rows[0] {
				sizes = append(sizes, len(row.Payload))
			}
			if want := []int{0, 3 << 20, 0, 100}; !slices.Equal(sizes, want) {
				t.Errorf("payloads of %d bytes, want %d", sizes, want)
			}
		})
	}
}
