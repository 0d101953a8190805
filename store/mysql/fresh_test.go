package mysql_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/store"
)

// TestFreshClaims checks that claims with and without the locking read give the same
// answers and leave the same rows, whatever the state of the rows.
func TestFreshClaims(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		states := []string{"'PENDING', 0", "'PROCESSING', 0", "'PENDING', 2", "'COMPLETED', 0", "'FAILED', 3", ""}
		rapid.Check(t, func(rt *rapid.T) {
			// Mostly fresh rows, so that some calls contain no others.
			picked := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5}), 1, 6).Draw(rt, "states")
			r.exec(t, "DELETE FROM outbox_events")
			var looked, unlooked []store.ClaimRow
			for i, state := range picked {
				for _, id := range []string{fmt.Sprint("a", i), fmt.Sprint("b", i)} {
					if states[state] != "" {
						r.exec(t, "INSERT INTO outbox_events (id, payload, status, retry_count) VALUES ('"+id+"', '{}', "+states[state]+")")
					}
				}
				looked = append(looked, row(fmt.Sprint("a", i)))
				unlooked = append(unlooked, fresh(fmt.Sprint("b", i)))
			}

			first, second := r.claim(t, looked...), r.claim(t, unlooked...)
			for i := range picked {
				first[i].Payload = nil
				if fmt.Sprint(first[i]) != fmt.Sprint(second[i]) {
					rt.Errorf("row (%s): got %+v with the locking read, %+v without", states[picked[i]], first[i], second[i])
				}
			}

			const shape = "SELECT GROUP_CONCAT(CONCAT_WS(' ', SUBSTR(id, 2), status, retry_count, processed_at IS NULL) ORDER BY id) FROM outbox_events WHERE id LIKE ?"
			if a, b := ask[*string](t, r.db, shape, "a%"), ask[*string](t, r.db, shape, "b%"); (a == nil) != (b == nil) || a != nil && *a != *b {
				rt.Errorf("rows afterwards: got %v with the locking read, %v without", a, b)
			}
		})
	})
}

// TestDuplicateIDs checks that two rows that share an id do not make up for a row that is
// gone or settled.
func TestDuplicateIDs(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		ddl := strings.Replace(flowTable, "id VARCHAR(13) PRIMARY KEY", "id VARCHAR(13), day INT NOT NULL DEFAULT 1, PRIMARY KEY (id, day)", 1) +
			" PARTITION BY RANGE (day) (PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20))"
		r := newRig(t, url, ddl, 0, flowBox())
		again := func() {
			r.exec(t, "DELETE FROM outbox_events")
			r.exec(t, "INSERT INTO outbox_events (id, day, payload, status) VALUES ('twice', 1, '{}', 'PENDING'), ('twice', 11, '{}', 'PENDING'), ('done', 1, '{}', 'COMPLETED')")
		}

		again()
		for other, want := range map[string]store.ClaimResult{"gone": store.Gone, "done": store.AlreadySettled} {
			if a := r.claim(t, fresh("twice"), fresh(other)); a[0].Result != store.Claimed || a[1].Result != want {
				t.Errorf("with another row %s: got %s, %s", other, a[0].Result, a[1].Result)
			}
		}

		for _, status := range []store.Status{store.Completed, store.Failed, store.Pending} {
			for other, want := range map[string]store.SettleResult{"gone": store.WasGone, "done": store.WasSettled} {
				again()
				a, b := outcome("twice", status), outcome(other, status)
				b.At = a.At
				if got := r.settle(t, a, b); got[0] != store.Written || got[1] != want {
					t.Errorf("%s with another row %s: got %v", status, other, got)
				}
			}
		}
	})
}

// TestFreshClaimsOfMany checks that a single row that is not fresh is found at any
// position of a claim with several statements.
func TestFreshClaimsOfMany(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		const n = 1600 // more than three statements
		var values []string
		var rows []store.ClaimRow
		for i := range n {
			id := fmt.Sprintf("%06d", i)
			values = append(values, "('"+id+"', '{}')")
			rows = append(rows, fresh(id))
		}

		r.exec(t, "INSERT INTO outbox_events (id, payload) VALUES "+strings.Join(values, ", "))
		for _, at := range []int{0, 511, 512, 1023, 1024, n - 1} {
			for what, want := range map[string]store.ClaimAnswer{
				"status = 'COMPLETED'":   {Result: store.AlreadySettled},
				"retry_count = 2":        {Result: store.Claimed, RetryCount: 2},
				"id = CONCAT(id, ' no')": {Result: store.Gone},
			} {
				r.exec(t, "UPDATE outbox_events SET "+what+" WHERE id = ?", rows[at].ID)
				r.store = openStore(t, url, 0, flowBox()) // has seen no claim that needed the locking read
				r.lead(t)
				for i, a := range r.claim(t, rows...) {
					expected := store.ClaimAnswer{Result: store.Claimed}
					if i == at {
						expected = want
					}
					if fmt.Sprint(a) != fmt.Sprint(expected) {
						t.Fatalf("row %d, with %s at %d: got %+v, want %+v", i, what, at, a, expected)
					}
				}
				r.exec(t, "UPDATE outbox_events SET id = ?, status = 'PENDING', retry_count = 0 WHERE id IN (?, CONCAT(?, ' no'))", rows[at].ID, rows[at].ID, rows[at].ID)
			}
		}
	})
}
