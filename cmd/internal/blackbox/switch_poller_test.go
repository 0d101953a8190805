package blackbox

import (
	"context"
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
			layoutCase: home, create: "CREATE TABLE orders_outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id TEXT NOT NULL, body TEXT NOT NULL, sent BOOLEAN NOT NULL DEFAULT false)",
			outbox:  "layout: custom, kind: order, state: boolean, columns: {id: id, group: order_id, payload: body, status: sent}, order-by: [id]",
			pending: "SELECT id::text AS key, body FROM {table} WHERE NOT sent ORDER BY id", done: "UPDATE {table} SET sent = true WHERE id::text = $1",
		},
		{
			layoutCase: flowcatalyst, outbox: "layout: flowcatalyst, kind: EVENT",
			pending: "SELECT id, payload FROM {table} WHERE status = 'PENDING' ORDER BY message_group, created_at",
			done:    "UPDATE {table} SET status = 'COMPLETED', processed_at = now() WHERE id = $1",
		},
		{
			layoutCase: catboxCase(),
			pending:    "SELECT id::text AS key, payload FROM {table} WHERE sent_at IS NULL AND (in_progress_until IS NULL OR in_progress_until < now()) ORDER BY created_at, id",
			done:       "UPDATE {table} SET sent_at = now() WHERE id::text = $1",
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
	query, args := p.sql(p.pending)+" LIMIT 5", []any{p.at}
	if p.done != "" {
		query, args = query+" FOR UPDATE SKIP LOCKED", nil
	}
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("%w, in: %s", err, query)
	}
	defer func() { _ = rows.Close() }()
	var batch [][2]string
	for rows.Next() {
		var row [2]string
		if err := rows.Scan(&row[0], &row[1]); err != nil {
			return 0, err
		}
		batch = append(batch, row)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, row := range batch {
		if err := p.send(ctx, row[0], row[1]); err != nil {
			return 0, err
		}
		if p.done == "" {
			p.at = row[0]
		} else if _, err := tx.ExecContext(ctx, p.sql(p.done), row[0]); err != nil {
			return 0, err
		}
	}
	return len(batch), tx.Commit()
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
// run for a while, so that rows are sent twice, and the order holds from then on only.
func TestSwitchFromAPoller(t *testing.T) {
	t.Parallel()
	for _, c := range switchCases() {
		t.Run(c.layout, func(t *testing.T) {
			t.Parallel()
			aVersion(t, func(t *testing.T, version int) { testSwitch(t, c, postgresHost(version).database(t)) })
		})
	}
}

func testSwitch(t *testing.T, c *switchCase, database string) {
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
	p := &poller{layoutScene: s, switchCase: c, at: "0/0", client: http.Client{Transport: &http.Transport{}}}
	t.Cleanup(p.client.CloseIdleConnections)
	config := fmt.Sprintf(switchConfig, nameFor(database), database, s.table, outbox, s.to.URL(), c.dispatch, adminKey)
	stopWriters := s.writeOn()

	const some = 40
	p.start()
	arrive(t, s.to, some)
	var r *relay
	if c.stateless { // the relay reads what commits from its start on
		r = start(t, config)
		r.waitFor("source connected")
		s.awaitCommitted()
		p.stop()
	} else {
		p.stop()
		r = start(t, config)
	}
	arrive(t, s.to, s.to.Counts().Distinct+some)
	if c.stateless {
		last, err := s.conn.texts("SELECT transaction_id || '/' || position FROM crablet_events ORDER BY transaction_id DESC, position DESC LIMIT 1")
		if err != nil {
			t.Fatal(err)
		}
		p.at = last[0]
		p.start()
		s.awaitCommitted() // a row that was open then is behind the poller's position: the relay sends it
	}
	expectStop(t, r)
	if !c.stateless {
		p.start()
	}
	arrive(t, s.to, s.to.Counts().Distinct+some)

	stopWriters()
	rows := s.countAll()
	arrive(t, s.to, rows)
	p.stop()
	again := 0
	if c.stateless {
		again = s.to.Counts().Duplicates
	} else if again = s.checkOrder(); again > 0 {
		t.Errorf("%d rows were sent twice, want 0", again)
	}
	t.Logf("%d rows, %d of them sent twice", rows, again)
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
