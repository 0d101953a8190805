package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// keepScene is a relay of a table without a state that stopped behind row a. Rows b and c
// committed since.
type keepScene struct {
	*database
	t  *testing.T
	at store.Checkpoint
}

// withoutState is an outbox whose rows only the log has.
func withoutState(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: "outbox_events", Kind: "EVENT", Layout: store.Layout{
		Name: store.CustomLayout, State: store.StateNone,
		Columns: store.Columns{ID: "id", Group: "message_group", Payload: "payload"},
	}}}
}

const createSecond = "CREATE TABLE second (LIKE outbox_events INCLUDING ALL)"

// withSecond has another outbox, whose table has a state.
func withSecond(cfg postgres.Config) postgres.Config {
	second := outboxes("second")[0]
	second.Table = "second"
	cfg.Outboxes = append(slices.Clone(cfg.Outboxes), second)
	return cfg
}

func newKeepScene(t *testing.T, url string, change func(postgres.Config) postgres.Config) *keepScene {
	t.Helper()
	s := &keepScene{database: newDatabaseOf(t, url, createTable+"; "+createSecond, withoutState), t: t}
	r := run(t, s.database, change(s.config()), store.Checkpoint{})
	servers.Exec(t, url, insert("a"))
	s.at = store.Checkpoint{Origin: r.o.Origin, Position: r.next().Position}
	r.close()
	servers.Exec(t, url, insert("b"), "INSERT INTO second (id, payload) VALUES ('x', 'p')", insert("c"))
	return s
}

func unchanged(cfg postgres.Config) postgres.Config { return cfg }

// open opens a source at the scene's checkpoint, and moves it to the one that was kept.
func (s *keepScene) open(cfg postgres.Config, tables *capturetest.Tables) (*postgres.Source, capture.OpenResult, error) {
	s.t.Helper()
	src := newSource(s.t, cfg)
	s.t.Cleanup(src.Close)
	o, err := src.Open(s.t.Context(), s.at, tables)
	if o.View != nil {
		o.View.Close()
	}
	if tables.KeptAt.Position != "" {
		s.at = tables.KeptAt
	}
	return src, o, err
}

// expectKept opens a source and expects the rows that it keeps.
func (s *keepScene) expectKept(cfg postgres.Config, want ...string) capture.OpenResult {
	s.t.Helper()
	tables := s.tables()
	src, o, err := s.open(cfg, tables)
	if err != nil {
		s.t.Fatal(err)
	}
	if got := idsOf(tables.Kept); !slices.Equal(got, want) || !slices.Equal(o.Kept, []string{"shop"}) || tables.Cleared > 0 {
		s.t.Errorf("the snapshot kept rows %v of %v, want %v; the checkpoint was cleared %d times", got, o.Kept, want, tables.Cleared)
	}
	if o.View == nil || o.From != s.at.Position || o.SnapshotReason == "" {
		s.t.Errorf("got %+v, checkpoint %+v", o, s.at)
	}
	src.Close()
	s.expectOneSlot()
	var failover bool
	err = servers.Connect(s.t, s.url).QueryRow(s.t.Context(), `SELECT coalesce(to_jsonb(s) ->> 'failover', 'true')::bool
		FROM pg_replication_slots s WHERE slot_name = $1`, s.name).Scan(&failover)
	if err != nil || !failover {
		s.t.Errorf("the slot is a failover slot: %t, %v", failover, err)
	}
	return o
}

func idsOf(items []store.Item) (ids []string) {
	for i := range items {
		ids = append(ids, items[i].ID)
	}
	return ids
}

func (s *keepScene) expectOneSlot() {
	s.t.Helper()
	var slots string
	err := servers.Connect(s.t, s.url).QueryRow(s.t.Context(), "SELECT string_agg(slot_name::text, ' ') FROM pg_replication_slots WHERE database = current_database()").Scan(&slots)
	if err != nil || slots != s.name {
		s.t.Errorf("the server has slots %q, want %q: %v", slots, s.name, err)
	}
}

// TestSnapshotKeepsRows: a snapshot because of another outbox keeps the rows that only the old
// log has, and the new log begins behind them.
func TestSnapshotKeepsRows(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		for name, change := range map[string][2]func(postgres.Config) postgres.Config{
			"an outbox is added": {unchanged, withSecond}, "an outbox is removed": {withSecond, unchanged},
		} {
			t.Run(name, func(t *testing.T) {
				s := newKeepScene(t, servers.Database(t, version), change[0])
				cfg := change[1](s.config())
				o := s.expectKept(cfg, "b", "c")
				if !strings.Contains(o.SnapshotReason, "was missing a table") && o.SnapshotReason != "the set of outbox tables changed" {
					t.Errorf("unexpected snapshot reason %q", o.SnapshotReason)
				}
				servers.Exec(t, s.url, insert("d"))
				r := run(t, s.database, cfg, store.Checkpoint{Origin: o.Origin, Position: o.From})
				if b := r.next(); b.Items[0].ID != "d" || r.o.SnapshotReason != "" {
					t.Errorf("row %s, snapshot because %q", b.Items[0].ID, r.o.SnapshotReason)
				}
			})
		}
	})
}

// TestUnfinishedSnapshotKeepsRows: whatever step a start ends at, the next one keeps the rows
// that no start has kept, and leaves one slot.
func TestUnfinishedSnapshotKeepsRows(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		failed := errors.New("the relay was ended")
		for step := range 3 {
			t.Run(fmt.Sprint("the database fails call ", step), func(t *testing.T) {
				s := newKeepScene(t, servers.Database(t, version), unchanged)
				tables := s.tables()
				calls := 0
				tables.OnKeep = func(store.Checkpoint, []store.Item) error {
					if calls++; calls > step {
						return failed
					}
					return nil
				}
				if _, _, err := s.open(withSecond(s.config()), tables); !errors.Is(err, failed) {
					t.Fatalf("Open ended with %v", err)
				}
				s.expectOneSlot()
				if len(tables.Kept) > 0 {
					s.expectKept(withSecond(s.config()))
				} else {
					s.expectKept(withSecond(s.config()), "b", "c")
				}
			})
		}
		t.Run("the view fails", func(t *testing.T) {
			s := newKeepScene(t, servers.Database(t, version), unchanged)
			if _, _, err := s.open(withSecond(s.config()), &capturetest.Tables{Viewer: noView{failed}}); !errors.Is(err, failed) {
				t.Fatalf("Open ended with %v", err)
			}
			s.expectOneSlot()
			s.expectKept(withSecond(s.config()), "b", "c")
		})

		const next = "_unfinished_snapshot"
		copied := func(s *keepScene) string {
			return fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%[1]s', '%[1]s%s')", s.name, next)
		}
		dropped := func(s *keepScene) string { return fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", s.name) }
		for name, statements := range map[string][]func(*keepScene) string{
			"the relay is killed after the last step":           nil,
			"the relay is killed when the slot has both names":  {copied},
			"the relay is killed when the old slot was dropped": {copied, dropped},
		} {
			t.Run(name, func(t *testing.T) {
				s := newKeepScene(t, servers.Database(t, version), unchanged)
				s.expectKept(withSecond(s.config()), "b", "c")
				for _, statement := range statements {
					servers.Exec(t, s.url, statement(s))
				}
				servers.Exec(t, s.url, insert("d"))
				if o := s.expectKept(withSecond(s.config()), "d"); o.SnapshotReason != "the last snapshot was not finished" {
					t.Errorf("unexpected snapshot reason %q", o.SnapshotReason)
				}
				s.expectKept(withSecond(s.config()))
			})
		}
	})
}

// TestFirstSnapshotKeepsRows: rows behind the slot of a snapshot that had no old log to read are
// kept too, if the relay is killed before the rows of the tables are settled or spilled.
func TestFirstSnapshotKeepsRows(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		for name, lose := range map[string]func(s *keepScene){
			"the first start": func(s *keepScene) { s.at = store.Checkpoint{} },
			"a lost slot": func(s *keepScene) {
				servers.Exec(s.t, s.url, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", s.name))
			},
		} {
			t.Run(name, func(t *testing.T) {
				s := newKeepScene(t, servers.Database(t, version), unchanged)
				lose(s)
				tables := s.tables()
				src, o, err := s.open(s.config(), tables)
				if err != nil || tables.Cleared != 1 || len(tables.Kept) > 0 || o.Discard != nil || o.From != s.at.Position {
					t.Fatalf("got %+v, the checkpoint was cleared %d times, %d rows were kept, %v", o, tables.Cleared, len(tables.Kept), err)
				}
				src.Close()
				servers.Exec(t, s.url, insert("d"), insert("e"))
				if o := s.expectKept(s.config(), "d", "e"); o.SnapshotReason != "the last snapshot was not finished" {
					t.Errorf("unexpected snapshot reason %q", o.SnapshotReason)
				}
				s.expectKept(s.config())
			})
		}
		t.Run("the checkpoint cannot be saved", func(t *testing.T) {
			s := newKeepScene(t, servers.Database(t, version), unchanged)
			s.at = store.Checkpoint{}
			tables, failed := s.tables(), errors.New("the relay was ended")
			tables.OnKeep = func(store.Checkpoint, []store.Item) error { return failed }
			if _, _, err := s.open(s.config(), tables); !errors.Is(err, failed) {
				t.Fatalf("Open ended with %v", err)
			}
			expectNoSlot(t, s.database)
		})
	})
}

type noView struct{ err error }

func (v noView) View(context.Context, string) (store.View, error) { return nil, v.err }

// TestSnapshotKeepsManyRows: rows in more than one part, also of one transaction, are kept in
// order, and the checkpoint never passes a row that was not kept.
func TestSnapshotKeepsManyRows(t *testing.T) {
	oneVersion(t, func(t *testing.T, version int) {
		s := newKeepScene(t, servers.Database(t, version), unchanged)
		const rows = 5000
		servers.Exec(t, s.url,
			"INSERT INTO outbox_events (id, message_group, payload) SELECT n, 'g', 'p' FROM generate_series(1, 5000) n", insert("last"))
		want := []string{"b", "c"}
		for i := range rows {
			want = append(want, fmt.Sprint(i+1))
		}
		want = append(want, "last")
		s.expectKept(withSecond(s.config()), want...)
	})
}

// TestSnapshotThatCannotKeepRows: if the old slot is gone, Open takes a snapshot without its
// rows. If no slot is free, Open changes nothing.
func TestSnapshotThatCannotKeepRows(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		t.Run("slot gone", func(t *testing.T) {
			s := newKeepScene(t, servers.Database(t, version), unchanged)
			servers.Exec(t, s.url, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", s.name))
			tables := s.tables()
			_, o, err := s.open(withSecond(s.config()), tables)
			if err != nil || len(tables.Kept) > 0 || len(o.Kept) > 0 || tables.Cleared == 0 || o.View == nil {
				t.Errorf("got %+v, %v; kept %d rows, cleared the checkpoint %d times", o, err, len(tables.Kept), tables.Cleared)
			}
		})
		t.Run("no free slot", func(t *testing.T) {
			srv := servers.Start(t, version, map[string]string{"max_replication_slots": "1"})
			s := newKeepScene(t, srv.URL, unchanged)
			_, _, err := s.open(withSecond(s.config()), s.tables())
			if err == nil || !strings.Contains(err.Error(), "all replication slots are taken, and the new slot needs one beside slot "+s.name) {
				t.Errorf("Open ended with %v", err)
			}
			s.expectOneSlot()
			srv.Restart(map[string]string{"max_replication_slots": "2"})
			s.expectKept(withSecond(s.config()), "b", "c")
		})
	})
}
