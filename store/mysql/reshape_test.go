package mysql_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestReshape checks that running the printed script again keeps spilled rows and the
// checkpoint. Tables of an earlier form are recreated, without the checkpoint.
func TestReshape(t *testing.T) {
	eachFlavour(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox())
		r.exec(t, "INSERT INTO sluicebox_checkpoint (name, origin, position, seq, updated_at) VALUES ('kept', 'o', 'p', 1, NOW(6)) ON DUPLICATE KEY UPDATE position = 'p'")
		r.exec(t, "INSERT INTO sluicebox_parked (name, outbox, lane, seq, id, kind, retry_count, payload_size) VALUES ('kept', 'events', 'l', 1, '1', 'EVENT', 0, 0)")
		expect := func(what string, parked, placed int) {
			t.Helper()
			if got := ask[int](t, r.db, "SELECT COUNT(*) FROM sluicebox_parked"); got != parked {
				t.Errorf("%s: %d rows are parked, want %d", what, got, parked)
			}
			if got := ask[int](t, r.db, "SELECT COUNT(*) FROM sluicebox_checkpoint WHERE position = 'p'"); got != placed {
				t.Errorf("%s: %d checkpoints have their place, want %d", what, got, placed)
			}
			if got := ask[int](t, r.db, "SELECT version FROM sluicebox_meta"); got != 3 {
				t.Errorf("%s: the tables have version %d", what, got)
			}
		}

		servers.ExecMySQL(t, url, strings.Split(strings.TrimSpace(r.store.Script()), ";\n")...)
		expect("the script again", 1, 1)
		r.exec(t, "UPDATE sluicebox_meta SET version = 2")
		if err := r.store.Install(ctx(t)); err != nil {
			t.Fatal(err)
		}
		expect("an earlier form", 0, 0)
	})
}
