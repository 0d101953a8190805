package blackbox

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
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

// inboxDatabase is a database with the tables of deploy/inbox, and the effects of messages.
type inboxDatabase struct {
	name, url string
	conn      *conn           // nil for MongoDB
	db        *mongo.Database // nil for tables
	remove    string          // the statement that removes old ids, "" for MongoDB
}

// inboxDatabases returns one on each kind of database.
func inboxDatabases(t *testing.T) (all []*inboxDatabase) {
	t.Helper()
	statements := fences(t, "inbox/README.md", "sql")
	if len(statements) != 4 {
		t.Fatalf("%d statements in the README, want CREATE and DELETE for PostgreSQL and for MySQL", len(statements))
	}
	for _, h := range serviceHosts(t) {
		at, mine := h.database(t), statements[2:]
		if h.kind.postgres {
			mine = statements[:2]
		}
		h.kind.run(t, at, mine[0], "CREATE TABLE effects (kind VARCHAR(100), id VARCHAR(255))")
		all = append(all, &inboxDatabase{name: h.name, url: at, conn: connect(t, at), remove: mine[1]})
	}
	if len(servers.Chosen([]string{"mongo"})) > 0 {
		at := servers.Mongo(t)
		in := &inboxDatabase{name: "mongo", url: at, db: servers.OpenMongo(t, at)}
		mongosh(t, in.db, fences(t, "inbox/README.md", "js")[0], "")
		if err := in.db.CreateCollection(t.Context(), "effects"); err != nil {
			t.Fatal(err)
		}
		all = append(all, in)
	}
	return all
}

// effects counts the messages of a kind that were applied.
func (in *inboxDatabase) effects(t *testing.T, kind string) int {
	t.Helper()
	if in.db == nil {
		return count(t, in.conn, "SELECT count(*) FROM effects WHERE kind = $1", kind)
	}
	n, err := in.db.Collection("effects").CountDocuments(t.Context(), bson.M{"kind": kind})
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// checkRemoval removes old ids, as the README says. MongoDB does it by an index.
func (in *inboxDatabase) checkRemoval(t *testing.T) {
	t.Helper()
	if in.db != nil {
		return
	}
	recent := count(t, in.conn, "SELECT count(*) FROM inbox WHERE id = 'copies'")
	if _, err := in.conn.exec("UPDATE inbox SET received_at = $1 WHERE id <> 'copies'", time.Now().AddDate(0, 0, -31)); err != nil {
		t.Fatal(err)
	}
	in.conn.kind.run(t, in.url, in.remove)
	if n := count(t, in.conn, "SELECT count(*) FROM inbox"); n != recent {
		t.Errorf("%s: %d ids are left, want the %d recent ones", in.name, n, recent)
	}
}

// anInbox is an inbox of deploy/inbox on a database. Its effect is a row in effects, and then an error if
// fail is set.
type anInbox struct {
	name    string
	in      *inboxDatabase
	receive func(kind, id string, fail bool) (first bool, err error)
}

// kind is a kind of messages that no other inbox has.
func (i *anInbox) kind(of string) string { return i.name + "/" + of }

var errFails = errors.New("the service fails after its rows")

// inboxesOf returns the inboxes of a service.
func inboxesOf(s *service, l *language, databases []*inboxDatabase) (all []*anInbox) {
	for _, w := range l.writers {
		for _, in := range databases {
			at, err := url.Parse(in.url)
			if err != nil {
				s.t.Fatal(err)
			}
			to := w.url(at)
			if to == "" || !w.inbox {
				continue
			}
			all = append(all, &anInbox{l.name + "-" + w.name + "-" + in.name, in, func(kind, id string, fail bool) (bool, error) {
				form := url.Values{"writer": {w.name}, "url": {to}, "kind": {kind}, "id": {id}}
				if fail {
					form.Set("fail", "true")
				}
				status, text, err := s.post("/receive", form)
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("status %d: %s", status, text)
				}
				return strings.EqualFold(text, "true"), err
			}})
		}
	}
	return all
}

// The inboxes in Go. The other languages have theirs in TestServices.
func TestInbox(t *testing.T) {
	t.Parallel()
	databases := inboxDatabases(t)
	var all []*anInbox
	for _, in := range databases {
		all = append(all, &anInbox{"go-" + in.name, in, func(kind, id string, fail bool) (bool, error) {
			end := func(err error) error {
				if fail {
					err = cmp.Or(err, errFails)
				}
				return err
			}
			ctx := context.Background()
			if in.db != nil {
				return inbox.ReceiveMongo(ctx, in.db, kind, id, func(ctx context.Context) error {
					_, err := in.db.Collection("effects").InsertOne(ctx, bson.M{"kind": kind, "id": id})
					return end(err)
				})
			}
			receive := inbox.ReceiveMySQL
			if in.conn.kind.postgres {
				receive = inbox.Receive
			}
			return receive(ctx, in.conn.DB, kind, id, func(tx *sql.Tx) error {
				query, args := in.conn.text("INSERT INTO effects (kind, id) VALUES ($1, $2)", []any{kind, id})
				_, err := tx.ExecContext(ctx, query, args...)
				return end(err)
			})
		}})
	}
	t.Run("in", func(t *testing.T) {
		aVersion(t, func(t *testing.T, version int) { testInbox(t, servers.Database(t, version), all) })
	})
	for _, in := range databases {
		in.checkRemoval(t)
	}
}

// testInbox checks that inboxes drop the duplicates that a killed relay makes: each of them has
// applied rows, and the relay dies before their answers, so it sends them again after its restart.
func testInbox(t *testing.T, database string, inboxes []*anInbox) {
	t.Helper()
	const groups, rows, held = 4, 24, 3 // the third row of each group is applied, and its answer never read
	initOutbox(t, "debezium", database)
	conn := connect(t, database)
	run := nameFor(database) // inboxes of other runs are in the same tables

	to, killed, applied := sinktest.NewReceiver(t), make(chan struct{}), make(chan struct{}, groups)
	var repeated atomic.Int64
	var turns sync.Map // by id: a copy waits until all inboxes have the message
	var alive atomic.Bool
	alive.Store(true)
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		var row struct{ N int }
		turn, _ := turns.LoadOrStore(r.Items[0].ID, &sync.Mutex{})
		turn.(*sync.Mutex).Lock()
		first, err := receiveAll(inboxes, run+r.Header.Get("Sluicebox-Kind"), r.Items[0].ID)
		turn.(*sync.Mutex).Unlock()
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
	config := fmt.Sprintf(inboxConfig, run, database, to.URL(), adminKey)
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
	for _, i := range inboxes {
		i.checkCopies(t, run)
		if n := i.in.effects(t, i.kind(run+"order")); n != rows {
			t.Errorf("%s: %d effects of %d messages, want one each", i.name, n, rows)
		}
	}
	t.Logf("%d inboxes, %d rows, %d repeated", len(inboxes), rows, repeated.Load())
}

// receiveAll receives a message with each inbox. All of them know it, or none.
func receiveAll(inboxes []*anInbox, kind, id string) (first bool, err error) {
	for n, i := range inboxes {
		mine, err := i.receive(i.kind(kind), id, false)
		switch {
		case err != nil:
			return false, fmt.Errorf("%s: %w", i.name, err)
		case n > 0 && mine != first:
			return false, fmt.Errorf("%s: first is %t, and %t for the other inboxes", i.name, mine, first)
		}
		first = mine
	}
	return first, nil
}

// checkCopies checks that of copies of a message at the same time one is applied, that a message is
// received again after an error, and that ids are compared byte by byte.
func (i *anInbox) checkCopies(t *testing.T, run string) {
	t.Helper()
	kind := i.kind(run)
	if _, err := i.receive(kind, "copies", true); err == nil || !strings.Contains(err.Error(), errFails.Error()) {
		t.Errorf("%s: an effect that fails: %v", i.name, err)
	}
	var copies errgroup.Group
	var firsts atomic.Int64
	for range 6 {
		copies.Go(func() error {
			for {
				first, err := i.receive(kind, "copies", false)
				if err != nil && strings.Contains(err.Error(), "Deadlock found") { // InnoDB ends one that waits, and it comes again
					continue
				}
				if first {
					firsts.Add(1)
				}
				return err
			}
		})
	}
	if err := copies.Wait(); err != nil || firsts.Load() != 1 {
		t.Errorf("%s: %d of the copies at once are the first, want 1; %v", i.name, firsts.Load(), err)
	}
	for _, id := range []string{"Copies", "copies "} {
		if first, err := i.receive(kind, id, false); err != nil || !first {
			t.Errorf("%s: id %q is taken for another: %v", i.name, id, err)
		}
	}
	if n := i.in.effects(t, kind); n != 3 {
		t.Errorf("%s: %d effects of 3 messages", i.name, n)
	}
}
