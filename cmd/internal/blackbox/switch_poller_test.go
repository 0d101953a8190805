package blackbox

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/layouts"
)

const switchConfig = `
name: %s
source: {mode: stream, url: %q}
outboxes: [{table: %s, %s, sink: hooks}]
sinks: {hooks: {type: webhook, url: %q}}
dispatch: {%s}
admin: {listen: %s}
`

// switchCase is a poller, as its project writes it, and its table.
type switchCase struct {
	*layoutCase
	// create creates a table of no layout, and outbox are the relay's keys for it.
	create, outbox string
	// pending selects id and payload of the rows to send, done marks the row $1. Without done, pending
	// reads behind $1, a transaction and a position: by positions alone it would lose a row whose
	// transaction is younger than its position.
	pending, done string
	// claim marks the row $1 before it is sent, for pollers that claim. pending then leaves out
	// the rows that a relay has claimed.
	claim string
}

func switchCases() []*switchCase {
	home := &layoutCase{
		layout: "homemade", insert: "INSERT INTO {table} (order_id, body) VALUES ($1, $2)",
		args: func(r *layoutRow) []any { return []any{r.group(), r.payload()} },
	}
	flowcatalyst := &layoutCase{
		layout: "flowcatalyst", id: func() string { return strings.ToUpper(strings.ReplaceAll(uuid.NewString(), "-", "")[:13]) },
		insert: "INSERT INTO {table} (id, type, message_group, payload, status, created_at) VALUES ($1, 'EVENT', $2, $3, 'PENDING', clock_timestamp())",
		args:   func(r *layoutRow) []any { return []any{r.ID, r.group(), r.payload()} },
	}
	return []*switchCase{
		{
			layoutCase: &layoutCase{layout: "homemade claims", insert: home.insert, args: home.args},
			create:     "CREATE TABLE orders_outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id TEXT NOT NULL, body TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'new', taken_at TIMESTAMPTZ)",
			outbox: "layout: custom, kind: order, state: words, words: {pending: new, processing: sending, completed: sent, failed: dead}, " +
				"columns: {id: id, group: order_id, payload: body, status: state, claimed: taken_at}, order-by: [id]",
			pending: "SELECT id::text AS key, body FROM {table} WHERE state = 'new' ORDER BY id",
			done:    "UPDATE {table} SET state = 'sent' WHERE id::text = $1",
			claim:   "UPDATE {table} SET state = 'sending', taken_at = now() WHERE id::text = $1",
		},
		{
			layoutCase: home, create: "CREATE TABLE orders_outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id TEXT NOT NULL, body TEXT NOT NULL, sent BOOLEAN NOT NULL DEFAULT false)",
			outbox:  "layout: custom, kind: order, state: boolean, columns: {id: id, group: order_id, payload: body, status: sent}, order-by: [id]",
			pending: "SELECT id::text AS key, body FROM {table} WHERE NOT sent ORDER BY id", done: "UPDATE {table} SET sent = true WHERE id::text = $1",
		},
		{
			layoutCase: flowcatalyst, outbox: "layout: flowcatalyst, kind: EVENT",
			pending: "SELECT id, payload FROM {table} WHERE status = 'PENDING' ORDER BY message_group, created_at",
			done:    "UPDATE {table} SET status = 'COMPLETED', processed_at = now() WHERE id = $1",
			claim:   "UPDATE {table} SET status = 'PROCESSING', processed_at = now() WHERE id = $1",
		},
		{
			layoutCase: catboxCase(),
			pending:    "SELECT id::text AS key, payload FROM {table} WHERE sent_at IS NULL AND (in_progress_until IS NULL OR in_progress_until < now()) ORDER BY created_at, id",
			done:       "UPDATE {table} SET sent_at = now(), in_progress_until = NULL WHERE id::text = $1",
			// Catbox' claims end after 5 minutes. A relay that finds one waits for that time.
			claim: "UPDATE {table} SET in_progress_until = now() + interval '5 seconds' WHERE id::text = $1",
		},
		{
			layoutCase: postboxCase(),
			pending:    "SELECT id, payload FROM {table} WHERE status = 'PENDING' ORDER BY created_at",
			done:       "UPDATE {table} SET status = 'PROCESSED', processed_at = now() WHERE id = $1",
		},
		{
			layoutCase: zeebeCase(),
			pending:    "SELECT message_id::text AS key, variables FROM {table} WHERE status = 'PENDING' ORDER BY created_at",
			done:       "UPDATE {table} SET status = 'SENT', updated_at = now() WHERE message_id::text = $1",
		},
		{
			layoutCase: crabletCase(),
			pending: `SELECT transaction_id || '/' || position AS key, data::text FROM {table}
				WHERE (transaction_id, position) > (split_part($1, '/', 1)::xid8, split_part($1, '/', 2)::bigint)
				AND transaction_id < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY transaction_id, position`,
		},
	}
}

// poller sends the rows of a table, a few in each transaction, as projects do without a relay.
type poller struct {
	*layoutScene
	*switchCase
	client http.Client
	at     string // the last row of a table without a state
	sent   int
	quit   chan struct{}
	ended  chan error
}

func (p *poller) start() {
	p.quit, p.ended = make(chan struct{}), make(chan error, 1)
	go func() { p.ended <- p.run() }()
}

// stop waits until the rows that are being sent are marked.
func (p *poller) stop() {
	p.t.Helper()
	close(p.quit)
	if err := <-p.ended; err != nil {
		p.t.Fatal(err)
	}
}

func (p *poller) run() error {
	for {
		sent, err := p.poll()
		if err != nil {
			return err
		}
		select {
		case <-p.quit:
			return nil
		default:
		}
		if sent == 0 {
			select {
			case <-p.quit:
				return nil
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func (p *poller) poll() (sent int, err error) {
	ctx := context.Background()
	tx, err := p.conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	batch, err := p.take(ctx, tx)
	if err != nil {
		return 0, err
	}
	mark := tx.ExecContext
	if p.claim != "" {
		if err := tx.Commit(); err != nil {
			return 0, err
		}
		mark = p.conn.ExecContext
	}
	for _, row := range batch {
		if err := p.send(ctx, row[0], row[1]); err != nil {
			return 0, err
		}
		if p.sent++; p.done == "" {
			p.at = row[0]
		} else if _, err := mark(ctx, p.sql(p.done), row[0]); err != nil {
			return 0, err
		}
	}
	if p.claim != "" {
		return len(batch), nil
	}
	return len(batch), tx.Commit()
}

// take returns keys and payloads of rows to send, claimed if the poller claims.
func (p *poller) take(ctx context.Context, tx *sql.Tx) (batch [][2]string, err error) {
	query, args := p.sql(p.pending)+" LIMIT 5", []any{p.at}
	if p.done != "" {
		query, args = query+" FOR UPDATE SKIP LOCKED", nil
	}
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%w, in: %s", err, query)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var row [2]string
		if err := rows.Scan(&row[0], &row[1]); err != nil {
			return nil, err
		}
		batch = append(batch, row)
	}
	if err := rows.Err(); err != nil || p.claim == "" {
		return batch, err
	}
	for _, row := range batch {
		if _, err := tx.ExecContext(ctx, p.sql(p.claim), row[0]); err != nil {
			return nil, err
		}
	}
	return batch, nil
}

func (p *poller) send(ctx context.Context, id, payload string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.to.URL(), strings.NewReader(payload))
	if err != nil {
		return err
	}
	req.Header.Set("webhook-id", id[strings.Index(id, "/")+1:])
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// A table is switched from the poller of its project to the relay and back, while its services write:
// no row is lost, none is sent twice, and each group keeps its order. With a table without a state both
// have a position for a while, and the rows of that time are sent twice, the first ones in order.
func TestSwitchFromAPoller(t *testing.T) {
	t.Parallel()
	for _, c := range switchCases() {
		t.Run(c.layout, func(t *testing.T) {
			t.Parallel()
			aVersion(t, func(t *testing.T, version int) { testSwitch(t, c, postgresHost(version).database(t)) })
		})
	}
}

// newPoller creates a table and its poller, and returns the relay's configuration with a place for the
// receiver's URL.
func newPoller(t *testing.T, c *switchCase, database, dispatch string) (p *poller, config string) {
	t.Helper()
	s := &layoutScene{layoutCase: c.layoutCase, t: t, source: database, conn: connect(t, database), to: sinktest.NewReceiver(t)}
	outbox := c.outbox
	if preset, known := layouts.Named(c.layout); known {
		s.table = preset.Schemas[layouts.Postgres].Table
		if outbox == "" {
			outbox = "layout: " + c.layout
		}
		initOutbox(t, c.layout, database)
	} else {
		s.table = "orders_outbox"
		s.conn.kind.run(t, database, c.create)
	}
	p = &poller{layoutScene: s, switchCase: c, at: "0/0", client: http.Client{Transport: &http.Transport{}}}
	t.Cleanup(p.client.CloseIdleConnections)
	return p, fmt.Sprintf(switchConfig, nameFor(database), database, s.table, outbox, "%s", dispatch, adminKey)
}

func testSwitch(t *testing.T, c *switchCase, database string) {
	t.Helper()
	p, config := newPoller(t, c, database, c.dispatch)
	stopWriters := p.writeOn()

	const some = 40
	most := 0 // of the rows that are sent twice
	p.start()
	arrive(t, p.to, some)
	if c.stateless { // the relay gets its position, and sends nothing
		most -= p.countAll()
		held := start(t, fmt.Sprintf(config, "http://"+nowhere))
		held.waitFor("source connected")
		p.awaitCommitted()
		p.stop()
		most += p.countAll()
		expectStop(t, held)
	} else {
		p.stop()
	}
	r := start(t, fmt.Sprintf(config, p.to.URL()))
	arrive(t, p.to, p.to.Counts().Distinct+some)
	if c.stateless { // the poller gets a position behind which nothing can commit any more
		most -= p.countAll()
		last, err := p.conn.texts("SELECT transaction_id || '/' || position FROM crablet_events WHERE transaction_id < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY transaction_id DESC, position DESC LIMIT 1")
		if err != nil {
			t.Fatal(err)
		}
		p.at = last[0]
		p.awaitCommitted()
	}
	expectStop(t, r)
	if c.stateless {
		most += p.countAll() + layoutWriters // those that were open when the position was read
	}
	p.start()
	arrive(t, p.to, p.to.Counts().Distinct+some)

	stopWriters()
	rows := p.countAll()
	arrive(t, p.to, rows)
	p.stop()
	again := p.checkOrder()
	if again > most {
		t.Errorf("%d rows were sent twice, want at most %d", again, most)
	}
	t.Logf("%d rows, %d of them sent twice, of at most %d", rows, again, most)
}

// A poller that claims its rows and the relay send the rows of one table at once, while its services
// write; then each is stopped and started beside the other. No row is lost, and none is sent twice.
// A group may lose its order while both send.
func TestSwitchBesideAPoller(t *testing.T) {
	t.Parallel()
	for _, c := range switchCases() {
		if c.claim == "" {
			continue
		}
		t.Run(c.layout, func(t *testing.T) {
			t.Parallel()
			aVersion(t, func(t *testing.T, version int) {
				p, config := newPoller(t, c, postgresHost(version).database(t), "takeover: timeout, processing-timeout-seconds: 5")
				stopWriters := p.writeOn()
				more := func(rows int) { arrive(t, p.to, p.to.Counts().Distinct+rows) }
				p.start()
				more(40)
				r := start(t, fmt.Sprintf(config, p.to.URL()))
				r.waitFor("source connected")
				more(200)
				p.stop()
				more(100)
				p.start()
				more(200)
				expectStop(t, r)
				more(40)
				stopWriters()
				rows := p.countAll()
				arrive(t, p.to, rows)
				p.stop()
				again, late := p.repeated()
				if again > 0 {
					t.Errorf("%d rows were sent twice, want 0", again)
				}
				t.Logf("%d rows, %d of them by the poller, %d behind a later row of their group", rows, p.sent, len(late))
			})
		})
	}
}

// awaitCommitted waits until each row that the table has now was sent.
func (s *layoutScene) awaitCommitted() {
	s.t.Helper()
	rows, err := s.conn.texts("SELECT position::text FROM crablet_events")
	if err != nil {
		s.t.Fatal(err)
	}
	within(s.t, testTimeout, func() string {
		sent := map[string]bool{}
		for _, got := range s.to.Accepted() {
			sent[got.ID] = true
		}
		for _, id := range rows {
			if !sent[id] {
				return "not sent: row " + id
			}
		}
		return ""
	})
}

// writeOn inserts a row in each transaction until the returned function is called.
func (s *layoutScene) writeOn() (stop func()) {
	s.t.Helper()
	var work errgroup.Group
	quit := make(chan struct{})
	for g := range layoutWriters {
		work.Go(func() error {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for n := 1; ; n++ {
				if err := s.commit([]*layoutRow{{Group: g + 1, N: n}}); err != nil {
					return err
				}
				select {
				case <-quit:
					return nil
				case <-pace.C:
				}
			}
		})
	}
	return func() {
		s.t.Helper()
		close(quit)
		if err := work.Wait(); err != nil {
			s.t.Fatal(err)
		}
	}
}
