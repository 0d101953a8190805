package blackbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/deploy/inbox"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const inboxConfig = `
name: %s
source: {mode: stream, url: %q}
outboxes: [{table: outbox, layout: debezium, sink: hooks}]
sinks:
  hooks: {type: webhook, url: %q, metadata-headers: [kind]}
admin: {listen: %s}
`

// receiver applies a message with the inbox of deploy/inbox, on a database. Its effect is a row in effects.
type receiver func(database, kind, id string) (first bool, err error)

// inboxOf returns the receiver of a service.
func inboxOf(s *service, l *language) receiver {
	return func(database, kind, id string) (bool, error) {
		at, err := url.Parse(database)
		if err != nil {
			return false, err
		}
		status, text, err := s.post("/receive", url.Values{"url": {l.writers[0].url(at)}, "kind": {kind}, "id": {id}})
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", status, text)
		}
		return strings.EqualFold(text, "true"), err
	}
}

// The inbox in Go. The other languages have theirs in TestServices.
func TestInbox(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		at := servers.Database(t, version)
		db := connect(t, at).DB
		testInbox(t, at, func(_, kind, id string) (bool, error) {
			return inbox.Receive(context.Background(), db, kind, id, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(context.Background(), "INSERT INTO effects (id) VALUES ($1)", id)
				return err
			})
		})
	})
}

// testInbox checks that an inbox drops the duplicates that a killed relay makes: the receiver has
// applied rows, and the relay dies before their answers, so it sends them again after its restart. Of
// copies that arrive at the same time one is applied. Then old ids are removed.
func testInbox(t *testing.T, database string, receive receiver) {
	t.Helper()
	const groups, rows, held = 4, 24, 3 // the third row of each group is applied, and its answer never read
	initOutbox(t, "debezium", database)
	statements := fences(t, "inbox/README.md", "sql")
	servers.Exec(t, database, statements[0], "CREATE TABLE effects (id TEXT)")
	conn := connect(t, database)

	to, killed, applied := sinktest.NewReceiver(t), make(chan struct{}), make(chan struct{}, groups)
	var repeated atomic.Int64
	var alive atomic.Bool
	alive.Store(true)
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		var row struct{ N int }
		first, err := receive(database, r.Header.Get("Sluicebox-Kind"), r.Items[0].ID)
		if err := json.Unmarshal(r.Body, &row); err != nil {
			t.Errorf("body %q: %v", r.Body, err)
		}
		switch {
		case err != nil:
			t.Errorf("row %s: %v", r.Items[0].ID, err)
			return sinktest.Answer{Status: http.StatusServiceUnavailable}
		case !first:
			repeated.Add(1)
		case row.N == held && alive.Load():
			applied <- struct{}{}
			return sinktest.Answer{Disconnect: true, Release: killed}
		}
		return sinktest.Answer{Status: http.StatusNoContent}
	})
	config := fmt.Sprintf(inboxConfig, nameFor(database), database, to.URL(), adminKey)
	r := start(t, config)
	r.waitFor("source connected")
	if _, err := conn.exec(`INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
		SELECT gen_random_uuid(), 'order', i % $1, 'OrderPaid', json_build_object('n', (i + $1 - 1) / $1) FROM generate_series(1, $2) i ORDER BY i`, groups, rows); err != nil {
		t.Fatal(err)
	}
	for range groups {
		select {
		case <-applied:
		case <-time.After(testTimeout):
			t.Fatal("not all groups have a row that was applied")
		}
	}
	r.kill()
	alive.Store(false)
	close(killed)
	r = start(t, config)
	arrive(t, to, rows)
	expectStop(t, r)
	if n := repeated.Load(); n < groups {
		t.Errorf("the relay repeated %d rows, want at least the %d that it was killed with", n, groups)
	}
	checkCopies(t, database, receive)
	if n := count(t, conn, "SELECT count(*) FROM effects"); n != rows+1 {
		t.Errorf("%d effects of %d messages, want one each", n, rows+1)
	}

	if _, err := conn.exec("UPDATE inbox SET received_at = now() - interval '31 days' WHERE id <> 'copies'"); err != nil {
		t.Fatal(err)
	}
	servers.Exec(t, database, statements[1])
	if n := count(t, conn, "SELECT count(*) FROM inbox"); n != 1 {
		t.Errorf("%d ids are left, want the recent one", n)
	}
	t.Logf("%d rows, %d repeated", rows, repeated.Load())
}

// checkCopies receives copies of one message at the same time.
func checkCopies(t *testing.T, database string, receive receiver) {
	t.Helper()
	var copies errgroup.Group
	var firsts atomic.Int64
	for range 6 {
		copies.Go(func() error {
			first, err := receive(database, "order", "copies")
			if first {
				firsts.Add(1)
			}
			return err
		})
	}
	if err := copies.Wait(); err != nil || firsts.Load() != 1 {
		t.Errorf("%d of the copies at once are the first, want 1; %v", firsts.Load(), err)
	}
}
