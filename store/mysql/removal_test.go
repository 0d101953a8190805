package mysql

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestRemovalLocksNoOtherRow: rows of a queue are removed beside another session's new row,
// in tables so small that the server would rather read all of them.
func TestRemovalLocksNoOtherRow(t *testing.T) {
	const box = "box"
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			for _, rows := range []int{2, 20, 200} {
				url := f.Database(t)
				st, epoch := scriptLeader(t, url)
				var items []store.Item
				var refs []store.SpilledRef
				for i := range rows {
					ref := store.Ref{Outbox: box, ID: fmt.Sprint("id ", i)}
					items = append(items, store.Item{Ref: ref, Kind: "EVENT", Group: store.GroupOf("g"), Seq: store.Seq(i + 1)})
					refs = append(refs, store.SpilledRef{Ref: ref, Seq: store.Seq(i + 1)})
				}
				if err := st.Spill(t.Context(), epoch, items); err != nil {
					t.Fatal(err)
				}

				servers.ExecMySQL(t, url, "ANALYZE TABLE sluicebox_queue")
				other, err := servers.OpenMySQL(t, url).BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range []int{0, 1000} { // in front of the others, and behind
					if _, err := other.Exec("INSERT INTO sluicebox_queue (name, queue, outbox, lane, n, id, kind, retry_count, payload_size) "+
						"VALUES ('rig', '', 'box', REPEAT('x', 20), ?, 'new', 'EVENT', 0, 0)", n); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				started := time.Now()
				for _, some := range [][]store.SpilledRef{refs[:1], refs[1 : 1+(rows-1)*4/5], refs[1+(rows-1)*4/5:]} {
					if err := st.DeleteSpilled(ctx, epoch, some); err != nil {
						t.Errorf("%d of %d rows, after %s: %v", len(some), rows, time.Since(started), err)
					}
				}
				if n, err := st.DeleteSpilledAfter(ctx, epoch, store.Checkpoint{Seq: 5000}); n != 0 || err != nil {
					t.Errorf("%d rows behind the others: %d, %v", rows, n, err)
				}
				cancel()
				if err := other.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
