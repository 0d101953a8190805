package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

var allLetters = store.DeadLetterFilter{Outbox: "events"}

// failRows inserts rows and settles them as FAILED, each blocking a lane of its own.
func (r *rig) failRows(t *testing.T, ids ...string) {
	t.Helper()
	r.insert(t, ids...)
	var outcomes []store.Outcome
	for _, id := range ids {
		o := outcome(id, store.Failed)
		o.Error = "error of " + id
		o.Block = &store.Hold{Lane: store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf(id)}}
		outcomes = append(outcomes, o)
	}
	if _, err := r.store.Settle(ctx(t), r.epoch, outcomes); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) holds(t *testing.T) int {
	t.Helper()
	holds, err := r.store.LoadHolds(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return len(holds)
}

// TestResolveWaitsForLockedRow: requeue and discard wait for a locked row, but not long,
// and then write nothing of the call. Reading does not wait.
func TestResolveWaitsForLockedRow(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.failRows(t, "1", "2", "3")
		locker := r.begin(t, "SELECT 1 FROM outbox_events WHERE id = '2' FOR UPDATE")
		began := time.Now()
		_, requeue := r.store.Requeue(ctx(t), r.epoch, allLetters, 9)
		_, discard := r.store.Discard(ctx(t), r.epoch, allLetters, 9)
		for what, err := range map[string]error{"requeue": requeue, "discard": discard} {
			var refused *store.RefusedError
			if !errors.As(err, &refused) {
				t.Errorf("%s of a locked row: got error %v", what, err)
			}
		}
		if took := time.Since(began); took < 2*time.Second || took > 10*time.Second {
			t.Errorf("both calls took %s, want 1 s each", took)
		}
		if n, err := r.store.CountFailed(ctx(t), allLetters); err != nil || n != 3 || r.holds(t) != 3 {
			t.Errorf("%d rows are FAILED, %d holds, %v", n, r.holds(t), err)
		}
		// The others are available without it.
		f := allLetters
		f.IDs = []string{"1"}
		if items, err := r.store.Requeue(ctx(t), r.epoch, f, 9); err != nil || len(items) != 1 {
			t.Errorf("requeue of the first row: got %v, error %v", items, err)
		}
		// Another session settles it during the call.
		c := ctx(t)
		rest := rigs.Async(func() ([]store.Item, error) { return r.store.Requeue(c, r.epoch, allLetters, 9) })
		r.waitBlocked(t, 1)
		if _, err := locker.Exec(ctx(t), "UPDATE outbox_events SET status = 'COMPLETED' WHERE id = '2'"); err != nil {
			t.Fatal(err)
		}
		end(t, locker, true)
		if a := <-rest; a.Err != nil || len(a.Value) != 1 || a.Value[0].ID != "3" {
			t.Errorf("requeue of the rest: got %v, error %v", a.Value, a.Err)
		}
		if got := r.status(t, "2"); got != "COMPLETED" {
			t.Errorf("the row settled meanwhile: got status %s", got)
		}
	})
}

// TestResolveWaitsForEpoch: a former leader's writes to holds and dead letters wait for a
// pending AcquireLeadership, and are refused when it commits. Reading does not wait.
func TestResolveWaitsForEpoch(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		r.failRows(t, "1", "2")
		pause := store.Hold{Lane: store.LaneKey{Outbox: "events", Kind: "EVENT"}, Kind: store.Paused}
		c := ctx(t)
		const rows = "SELECT string_agg(id || status || xmin::text, ',' ORDER BY id) FROM outbox_events"
		before := ask[string](t, r.conn, rows)
		for what, call := range map[string]func(store.Epoch) error{
			"requeue": func(e store.Epoch) error { _, err := r.store.Requeue(c, e, allLetters, 9); return err },
			"discard": func(e store.Epoch) error { _, err := r.store.Discard(c, e, allLetters, 9); return err },
			"hold":    func(e store.Epoch) error { return r.store.Hold(c, e, pause) },
			"release": func(e store.Epoch) error {
				return r.store.Release(c, e, store.LaneKey{Outbox: "events", Kind: "EVENT", Group: store.GroupOf("1")}, store.Blocked)
			},
		} {
			lead := r.begin(t, raiseEpoch)
			old := r.epoch
			answer := rigs.Async(func() (int, error) { return 0, call(old) })
			r.waitBlocked(t, 1)
			letters, err := r.store.Failed(c, allLetters, 9, true)
			if n, e := r.store.CountFailed(c, allLetters); err != nil || e != nil || n != 2 || len(letters) != 2 {
				t.Errorf("reads during AcquireLeadership: counted %d, error %v; read %d, error %v", n, e, len(letters), err)
			}
			end(t, lead, true)
			r.epoch++
			if a := <-answer; !errors.Is(a.Err, store.ErrNotLeader) {
				t.Errorf("%s: %v", what, a.Err)
			}
			if after := ask[string](t, r.conn, rows); after != before || r.holds(t) != 2 {
				t.Errorf("%s changed the rows from %s to %s, with %d holds", what, before, after, r.holds(t))
			}
		}
	})
}

// TestRequeueColumns: a NOT NULL column gets the nearest value to NULL, and a column with
// the time of a change keeps it.
func TestRequeueColumns(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		for columns, want := range map[string]string{
			"error_message text, processed_at timestamptz":                                             "PENDING 0 <null> t",
			"error_message text NOT NULL DEFAULT 'x', processed_at timestamptz NOT NULL DEFAULT now()": "PENDING 0  t",
			"error_message varchar(20) NOT NULL DEFAULT 'x', processed_at timestamp":                   "PENDING 0  t",
		} {
			t.Run(columns, func(t *testing.T) {
				r := newRig(t, url, `DROP TABLE IF EXISTS outbox_events; CREATE TABLE outbox_events (id text PRIMARY KEY, type text, message_group text, payload text,
  status text NOT NULL DEFAULT 'PENDING', retry_count smallint, created_at timestamptz, `+columns+")", 0, flowBox)
				r.failRows(t, "1")
				f := store.DeadLetterFilter{Outbox: "events", Error: "ror of 1"}
				if items, err := r.store.Requeue(ctx(t), r.epoch, f, 1); err != nil || len(items) != 1 {
					t.Fatal(items, err)
				}
				const state = "SELECT concat_ws(' ', status, retry_count, coalesce(error_message::text, '<null>'), processed_at IS NOT NULL) FROM outbox_events"
				if got := ask[string](t, r.conn, state); got != want {
					t.Errorf("got row %q, want %q", got, want)
				}
			})
		}
	})
}

// TestFilterCollations: a filter distinguishes texts that the table's types and
// collations treat as equal, and finds substrings in any collation.
func TestFilterCollations(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		servers.Exec(t, url, `DO $$ BEGIN
  CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
EXCEPTION WHEN feature_not_supported THEN NULL; END $$`)
		collation := " COLLATE ci"
		if ask[bool](t, servers.Connect(t, url), "SELECT to_regcollation('ci') IS NULL") {
			t.Log("this server has no ICU, so it has no collation that treats different texts as equal")
			collation = ` COLLATE "C"`
		}
		for _, typ := range []string{"text" + collation, "varchar(20)" + collation, "char(4)", "json"} {
			t.Run(typ, func(t *testing.T) {
				r := newRig(t, url, `DROP TABLE IF EXISTS outbox_events; CREATE TABLE outbox_events (id text PRIMARY KEY, type text, message_group `+typ+`, payload text,
  status text NOT NULL DEFAULT 'PENDING', retry_count smallint, created_at timestamptz, error_message text`+collation+`, processed_at timestamptz)`, 0, flowBox)
				r.exec(t, `INSERT INTO outbox_events (id, message_group, status, error_message) VALUES ('1', '"a"', 'FAILED', 'Über'), ('2', '"A"', 'FAILED', 'über')`)
				for id, group := range map[string]string{"1": `"a"`, "2": `"A"`} {
					if typ == "char(4)" {
						group += " "
					}
					g := store.GroupOf(group)
					f := store.DeadLetterFilter{Outbox: "events", Group: &g, Error: map[string]string{"1": "Ü", "2": "üb"}[id]}
					letters, err := r.store.Failed(ctx(t), f, 9, false)
					if err != nil || len(letters) != 1 || letters[0].ID != id || letters[0].Group != g {
						t.Errorf("group %s: got %+v, error %v", group, letters, err)
					}
				}
			})
		}
	})
}

// TestResolveRefused: a trigger or constraint that refuses the change is named, and the
// rows and holds stay.
func TestResolveRefused(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.failRows(t, "1", "2")
		r.exec(t, `CREATE TABLE copies (of varchar(13) REFERENCES outbox_events (id)); INSERT INTO copies VALUES ('1');
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF old.id = ''1'' AND TG_ARGV[0] = ''aloud'' THEN RAISE EXCEPTION ''keep it''; END IF; RETURN NULL; END'`)
		want := func(part string, err error) {
			t.Helper()
			var refused *store.RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), part) {
				t.Errorf("%v, want %q", err, part)
			}
			if n, err := r.store.CountFailed(ctx(t), allLetters); err != nil || n != 2 || r.holds(t) != 2 {
				t.Errorf("%d rows are FAILED, %d holds, %v", n, r.holds(t), err)
			}
		}
		_, err := r.store.Discard(ctx(t), r.epoch, allLetters, 9)
		want("copies", err)
		r.exec(t, "CREATE TRIGGER keep BEFORE UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION keep('aloud')")
		_, err = r.store.Requeue(ctx(t), r.epoch, allLetters, 9)
		want("keep it", err)
		r.exec(t, "DROP TRIGGER keep ON outbox_events; CREATE TRIGGER keep BEFORE UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION keep('in silence')")
		_, err = r.store.Requeue(ctx(t), r.epoch, allLetters, 9)
		want("trigger", err)
	})
}

// TestBlockIsOneTransaction: a row does not become FAILED without the hold of its
// outcome.
func TestBlockIsOneTransaction(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		r.insert(t, "1", "2")
		r.exec(t, "ALTER TABLE sluicebox.record ADD CHECK (coalesce((body->>'retryCount')::int, 0) < 5)")
		block := outcome("1", store.Failed)
		block.RetryCount, block.Block = 5, &store.Hold{Lane: store.LaneKey{Outbox: "events"}}
		_, err := r.store.Settle(ctx(t), r.epoch, []store.Outcome{block, outcome("2", store.Completed)})
		var refused *store.RefusedError
		if !errors.As(err, &refused) || r.status(t, "1") != "PENDING" || r.status(t, "2") != "PENDING" || r.holds(t) != 0 {
			t.Errorf("%v; the rows are %s and %s, %d holds", err, r.status(t, "1"), r.status(t, "2"), r.holds(t))
		}
		block.RetryCount = 4
		if _, err = r.store.Settle(ctx(t), r.epoch, []store.Outcome{block}); err != nil || r.status(t, "1") != "FAILED" || r.holds(t) != 1 {
			t.Errorf("%v; the row is %s, %d holds", err, r.status(t, "1"), r.holds(t))
		}
	})
}

// TestDiscardGrant: the error for a role that may not delete names the grant.
func TestDiscardGrant(t *testing.T) {
	aVersion(t, func(t *testing.T, admin string) {
		r := newRig(t, admin, flowTable, 0, flowBox)
		r.failRows(t, "1")
		relay := openStore(t, asRole(t, admin, "relay_discard"), 0, flowBox)
		servers.Exec(t, admin, remedies(t, relay.Check(ctx(t)))...)
		epoch, err := relay.AcquireLeadership(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		_, err = relay.Discard(ctx(t), epoch, allLetters, 9)
		var setup *store.SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), `GRANT DELETE ON "outbox_events" TO "relay_discard";`) {
			t.Fatal(err)
		}
		servers.Exec(t, admin, "GRANT DELETE ON outbox_events TO relay_discard")
		if refs, err := relay.Discard(ctx(t), epoch, allLetters, 9); err != nil || len(refs) != 1 {
			t.Errorf("after the grant: got %v, error %v", refs, err)
		}
	})
}

// TestHoldSurvivesCrash: successful writes by Hold, Release, Requeue and Settle with a
// hold survive a crash of the server.
func TestHoldSurvivesCrash(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts servers")
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			srv := servers.Start(t, version, map[string]string{
				"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "checkpoint_timeout": "1h", "autovacuum": "off",
			})
			r := newRig(t, srv.URL, flowTable, 0, flowBox)
			pause := store.Hold{Lane: store.LaneKey{Outbox: "events", Kind: "EVENT"}, Kind: store.Paused}
			crash := func() {
				srv.Stop("immediate")
				srv.Restart(nil)
				r.conn = servers.Connect(t, srv.URL)
				_, _ = r.store.LoadHolds(ctx(t)) // the old session is broken
			}
			r.failRows(t, "1", "2")
			crash()
			if n := r.holds(t); n != 2 || r.status(t, "1") != "FAILED" {
				t.Errorf("%d lanes are blocked after a crash, row 1 is %s", n, r.status(t, "1"))
			}
			if err := r.store.Hold(ctx(t), r.epoch, pause); err != nil {
				t.Fatal(err)
			}
			crash()
			if n := r.holds(t); n != 3 {
				t.Errorf("got %d holds after a crash, want one more", n)
			}
			if items, err := r.store.Requeue(ctx(t), r.epoch, allLetters, 1); err != nil || len(items) != 1 {
				t.Fatal(items, err)
			}
			crash()
			if n := r.holds(t); n != 2 || r.status(t, "1") != "PENDING" {
				t.Errorf("%d holds after a crash, row 1 is %s", n, r.status(t, "1"))
			}
			if err := r.store.Release(ctx(t), r.epoch, pause.Lane, store.Paused); err != nil {
				t.Fatal(err)
			}
			crash()
			if n := r.holds(t); n != 1 {
				t.Errorf("got %d holds after a crash, want only the blocked lane's", n)
			}
			if refs, err := r.store.Discard(ctx(t), r.epoch, allLetters, 9); err != nil || len(refs) != 1 {
				t.Fatal(refs, err)
			}
			crash()
			if n := ask[int](t, r.conn, "SELECT count(*) FROM outbox_events"); n != 1 {
				t.Errorf("got %d rows after a crash, want the requeued one", n)
			}
		})
	}
}
