package blackbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// On SQLite a replay reads the table, and reports that. Deleted rows are not sent. A checkpoint
// cannot retain the log. With another sink as target, only the replayed rows arrive there. By
// hand:
//
//	go test -v -run 'TestReplayOnSQLite' ./cmd/internal/blackbox
func TestReplayOnSQLite(t *testing.T) {
	t.Parallel()
	source, db := seedFile(t)
	to, other := sinktest.NewReceiver(t), sinktest.NewReceiver(t)
	config := fmt.Sprintf(`
name: %s
source: {url: %q}
outboxes: [{table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: platform}]
sinks:
  platform: {type: flowcatalyst, api-base-url: %q}
  rebuilt: {type: flowcatalyst, api-base-url: %q}
admin: {listen: %s}
`, nameFor(source), source, to.URL(), other.URL(), adminKey)
	r := start(t, config)
	r.waitFor("source connected")
	insertNumbered(t, db, 1, 50)
	settledOnSQLite := func(rows int) {
		t.Helper()
		arrive(t, to, rows)
		awaitZero(t, "rows are not COMPLETED", func() (n int) {
			if err := db.QueryRowContext(context.Background(), "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		})
	}
	settledOnSQLite(50)
	if out, why, code := r.sluicebox("checkpoint", "create", "kept", "--keep-log"); code != 64 || !strings.Contains(why, "no log to retain") {
		t.Errorf("--keep-log: exit code %d, want 64: %s%s", code, out, why)
	}
	r.checkpoint("before")
	insertNumbered(t, db, 51, 150)
	settledOnSQLite(150)
	// A time in whole seconds, like CURRENT_TIMESTAMP, includes the whole second.
	run(t, db, "UPDATE outbox_events SET created_at = '"+r.made("before").Format(time.DateTime)+"' WHERE id = '"+numbered(51)+"'")
	run(t, db, "DELETE FROM outbox_events WHERE id IN ("+quoted(numbers(61, 70)...)+")")
	want := slices.Concat(numbers(51, 60), numbers(71, 150))
	jobs := r.replays([]string{"--from=before", "--source=log"}, []string{"--from=before", "--to-sink=rebuilt"})
	expectRefused(t, jobs[0], "cannot read the log as requested, because this relay's log cannot be read again")
	job := jobs[1]
	if job.code != 0 || job.Sent != len(want) || job.Source != "table" || !strings.Contains(job.Reason, "from the table") {
		t.Errorf("the replay is %+v", job)
	}
	checkReplay(t, other.Accepted(), job.ID, want)
	if n := to.Counts().Duplicates; n > 0 || len(other.Accepted()) != len(want) {
		t.Errorf("%d rows arrived again at the outbox's own sink, want 0, %d at the other", n, len(other.Accepted()))
	}
	stdout, stderr, code := commandWithin(t, testTimeout, nil, "replay", "--from=before", "--id="+numbered(51), "--admin", r.admin)
	if code != 0 || !strings.Contains(stdout, "done; 1 row sent") {
		t.Errorf("over HTTP: exit code %d: %s%s", code, stdout, stderr)
	}
	if out, why, code := r.sluicebox("checkpoint", "delete", "before"); code != 0 {
		t.Errorf("checkpoint delete: exit code %d, want 0: %s%s", code, out, why)
	}
	expectStop(t, r)
}
