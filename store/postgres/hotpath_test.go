package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
)

// settleBoth completes two rows at the same time.
func settleBoth(t *testing.T, r *rig, first, second string) []store.SettleResult {
	t.Helper()
	outcomes := []store.Outcome{outcome(first, store.Completed), outcome(second, store.Completed)}
	outcomes[1].At = outcomes[0].At
	results, err := r.store.Settle(ctx(t), r.epoch, outcomes)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// TestCompleteWithoutTimeColumn settles rows of tables whose only state column is the
// status.
func TestCompleteWithoutTimeColumn(t *testing.T) {
	for name, layout := range map[string]store.Layout{
		"words":   {State: store.StateWords, Words: store.FlowCatalyst().Words},
		"numbers": {State: store.StateNumbers, Numbers: store.OutboxMessages().Numbers},
	} {
		layout.Name, layout.Columns = "custom", store.Columns{ID: "id", Payload: "payload", Status: "status"}
		box := store.Outbox{Name: "events", Table: "bare", Kind: "EVENT", Layout: layout}
		pending, completed, typ := "PENDING", "COMPLETED", "text"
		if layout.State == store.StateNumbers {
			pending, completed, typ = "0", "1", "int"
		}
		t.Run(name, func(t *testing.T) {
			aVersion(t, func(t *testing.T, url string) {
				r := newRig(t, url, fmt.Sprintf("CREATE TABLE bare (id text PRIMARY KEY, payload text, status %s); INSERT INTO bare VALUES ('1', 'x', '%s'), ('2', 'x', '%[2]s')", typ, pending), 0, box)
				r.claim(t, row("1"), row("2"))
				if got := settleBoth(t, r, "1", "2"); got[0] != store.Written || got[1] != store.Written {
					t.Errorf("got outcomes %v", got)
				}
				if n := ask[int](t, r.conn, "SELECT count(*) FROM bare WHERE status::text = $1", completed); n != 2 {
					t.Errorf("got %d completed rows, want 2", n)
				}
			})
		})
	}
}

// TestRowWithRetriesWrittenOnce claims it together with others: a table may refuse a
// row that is claimed twice.
func TestRowWithRetriesWrittenOnce(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable+`
CREATE TABLE updates (id text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO updates VALUES (NEW.id); RETURN NEW; END $$;`, 0, flowBox)
		r.insert(t, "1", "2", "3")
		r.exec(t, "UPDATE outbox_events SET retry_count = 2 WHERE id = '2'")
		r.exec(t, "CREATE TRIGGER note AFTER UPDATE ON outbox_events FOR EACH ROW EXECUTE FUNCTION note()")
		got := r.claim(t, row("1"), row("2"), row("3"))
		for i, retries := range []int{0, 2, 0} {
			if got[i].Result != store.Claimed || got[i].RetryCount != retries {
				t.Errorf("row %d: got %+v, want it claimed with %d retries", i+1, got[i], retries)
			}
		}
		if n := ask[int](t, r.conn, "SELECT count(*) FROM updates"); n != 3 {
			t.Errorf("3 rows: got %d writes", n)
		}
		if got := r.claim(t, row("2")); got[0].Result != store.Claimed || got[0].RetryCount != 2 {
			t.Errorf("claimed alone: got %+v", got[0])
		}
	})
}

// TestInheritedIDNotUnique has an id in a table and in its child. Counting rows would
// mistake one for the other.
func TestInheritedIDNotUnique(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable+"CREATE TABLE child () INHERITS (outbox_events);", 0, flowBox)
		r.insert(t, "1", "2")
		r.exec(t, "INSERT INTO child SELECT * FROM ONLY outbox_events WHERE id = '1'")
		r.exec(t, "UPDATE outbox_events SET status = 'COMPLETED' WHERE id = '2'")
		got := r.claim(t, row("1"), row("2"))
		if got[0].Result != store.Claimed || got[1].Result != store.AlreadySettled {
			t.Errorf("got %v for the unsettled row and %v for the settled one", got[0].Result, got[1].Result)
		}
		if got := settleBoth(t, r, "1", "2"); got[0] != store.Written || got[1] != store.WasSettled {
			t.Errorf("got outcomes %v", got)
		}
	})
}

// TestHotPathIsFenced lets claims and outcomes wait while a leader raises the
// epoch.
func TestHotPathIsFenced(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, withoutLockTimeout(url), flowTable, 0, flowBox)
		r.insert(t, "1", "2", "3", "4", "5")
		r.claim(t, row("4"), row("5"))
		for _, rows := range [][]store.ClaimRow{{row("1")}, {row("2"), row("3")}} {
			lead := r.begin(t, raiseEpoch)
			claim := r.claimLater(t, rows...)
			outcomes := []store.Outcome{outcome("4", store.Completed), outcome("5", store.Completed)}
			outcomes[1].At = outcomes[0].At
			c := ctx(t)
			settle := rigs.Async(func() ([]store.SettleResult, error) { return r.store.Settle(c, r.epoch, outcomes) })
			r.waitBlocked(t, 2)
			end(t, lead, true)
			if a, s := <-claim, <-settle; !errors.Is(a.Err, store.ErrNotLeader) || !errors.Is(s.Err, store.ErrNotLeader) {
				t.Errorf("got claim error %v and settle error %v", a.Err, s.Err)
			}
			for i := range rows {
				if got := r.status(t, rows[i].ID); got != "PENDING" {
					t.Errorf("row %s is %s", rows[i].ID, got)
				}
			}
			if got := r.status(t, "4"); got != "PROCESSING" {
				t.Errorf("row 4 is %s", got)
			}
			r.epoch++
		}
	})
}
