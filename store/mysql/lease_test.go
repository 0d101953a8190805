package mysql_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// leaseTable has the time until which a claim holds a row, and no FAILED.
const leaseTable = `
CREATE TABLE outbox_events (
    id VARCHAR(13) PRIMARY KEY,
    payload TEXT,
    sent_at DATETIME,
    in_progress_until DATETIME(3),
    failures INT NOT NULL DEFAULT 0,
    last_error TEXT
)`

func leaseBox() store.Outbox {
	return store.Outbox{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.Layout{
		Name: store.CustomLayout, State: store.StateTimestamps, Lease: true,
		Columns: store.Columns{ID: "id", Payload: "payload", Delivered: "sent_at", Claimed: "in_progress_until", RetryCount: "failures", Error: "last_error"},
	}}
}

// TestLease checks that a claim writes its end, that another processor's holds a row until
// then, and that every outcome ends it.
func TestLease(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		const takeover = 10 * time.Minute
		r := newRig(t, url, leaseTable, takeover, leaseBox())
		r.insert(t, "mine", "theirs", "over", "failed", "retried")
		at := time.Now().Add(-time.Minute)
		claim := func(own time.Time, ids ...string) []store.ClaimAnswer {
			t.Helper()
			rows := make([]store.ClaimRow, len(ids))
			for i, id := range ids {
				rows[i] = store.ClaimRow{Ref: row(id).Ref, OwnClaimAt: own}
			}
			answers, err := r.store.Claim(ctx(t), r.epoch, at, rows)
			if err != nil {
				t.Fatal(err)
			}
			return answers
		}
		column := func(id, name string) string {
			t.Helper()
			return ask[string](t, r.db, "SELECT COALESCE("+name+", 'NULL') FROM outbox_events WHERE id = ?", id)
		}

		for i, a := range claim(time.Time{}, "mine", "failed", "retried") {
			if a.Result != store.Claimed || a.Unwritten {
				t.Errorf("claim %d: %+v", i, a)
			}
		}
		if got, want := column("mine", "in_progress_until"), at.Add(takeover).UTC().Format("2006-01-02 15:04:05.000"); got != want {
			t.Errorf("the claim ends at %s, want %s", got, want)
		}
		if a := claim(at, "mine")[0]; a.Result != store.Claimed {
			t.Errorf("the leader's own claim: %s", a.Result)
		}

		r.exec(t, "UPDATE outbox_events SET in_progress_until = UTC_TIMESTAMP() + INTERVAL 5 MINUTE WHERE id = 'theirs'")
		r.exec(t, "UPDATE outbox_events SET in_progress_until = UTC_TIMESTAMP() - INTERVAL 1 SECOND WHERE id = 'over'")
		answers := claim(time.Time{}, "mine", "theirs", "over")
		for i, want := range []struct {
			result store.ClaimResult
			left   time.Duration
		}{{store.Held, takeover - time.Minute}, {store.Held, 5 * time.Minute}, {store.Claimed, 0}} {
			if a := answers[i]; a.Result != want.result || want.left > 0 && (time.Until(a.Until)-want.left).Abs() > 5*time.Second {
				t.Errorf("claim %d: %s until %s, want %s for %s", i, a.Result, a.Until, want.result, want.left)
			}
		}

		for i, got := range r.settle(t,
			outcome("mine", store.Completed),
			store.Outcome{Ref: row("failed").Ref, Status: store.Failed, RetryCount: 3, Error: "given up", At: at},
			store.Outcome{Ref: row("retried").Ref, Status: store.Pending, RetryCount: 2, Error: "later", At: at},
		) {
			if got != store.Written {
				t.Errorf("outcome %d: %d", i, got)
			}
		}
		for id, want := range map[string]string{"mine": "0 NULL", "failed": "3 given up", "retried": "2 later"} {
			if got := column(id, "failures") + " " + column(id, "last_error"); got != want || column(id, "in_progress_until") != "NULL" || (column(id, "sent_at") == "NULL") == (id == "mine") {
				t.Errorf("row %s has %s, is claimed until %s, was sent at %s; want %s", id, got, column(id, "in_progress_until"), column(id, "sent_at"), want)
			}
		}
	})
}

// TestDeleteWithoutState checks that a row of a table without states is to be sent as long as
// it exists, where the relay deletes delivered rows.
func TestDeleteWithoutState(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		box := leaseBox()
		box.Layout = store.Layout{
			Name: store.CustomLayout, State: store.StateNone, DeleteDelivered: true, Columns: store.Columns{ID: "id", Payload: "payload"},
		}
		r := newRig(t, url, leaseTable, 0, box)
		if err := r.store.Check(ctx(t)); err != nil {
			t.Error(err)
		}
		r.insert(t, "1", "2", "3")
		r.exec(t, "DELETE FROM outbox_events WHERE id = '3'")
		answers := r.claim(t, fresh("1"), row("2"), fresh("3"))
		for i, want := range []store.ClaimResult{store.Claimed, store.Claimed, store.Gone} {
			if a := answers[i]; a.Result != want || want == store.Claimed && (!a.Unwritten || i == 1 && string(a.Payload) != "{}") {
				t.Errorf("claim %d: %+v, want %s", i, a, want)
			}
		}

		got := r.settle(t, outcome("1", store.Completed), outcome("2", store.Failed), outcome("2", store.Pending), outcome("3", store.Completed))
		if want := []store.SettleResult{store.Written, store.Written, store.Written, store.WasGone}; !slices.Equal(got, want) {
			t.Errorf("outcomes %d, want %d", got, want)
		}
		if left := ask[string](t, r.db, "SELECT GROUP_CONCAT(id) FROM outbox_events"); left != "2" {
			t.Errorf("rows %s are left", left)
		}
		r.wantIDs(t, "", map[string]string{"the row that was not delivered": "2"})
		states, err := r.store.ReadStatuses(ctx(t), []store.ClaimRow{row("1"), row("2")})
		if err != nil || states[0].State != store.RowAbsent || states[1].State != store.RowUnsettled {
			t.Errorf("states %+v, %v", states, err)
		}
	})
}
