package floor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const patience = 30 * time.Second

// tables have the columns of the layouts. The defaults are those of a pending row.
var tables = map[string]string{
	"flowcatalyst": `(id varchar(13) PRIMARY KEY, payload text, status varchar(20) NOT NULL DEFAULT 'PENDING',
		created_at timestamp NOT NULL DEFAULT now(), processed_at timestamp)`,
	"outbox-messages": `(id varchar(26) PRIMARY KEY, payload jsonb, status smallint NOT NULL DEFAULT 0,
		created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz)`,
}

// place is a database with a table, a publication and a slot, and a floor in it.
type place struct {
	t                           *testing.T
	conn                        *pgx.Conn
	cfg                         floor.Config
	pending, processing, failed string // values of the status

	cancel context.CancelFunc
	ended  chan error
}

func newPlace(t *testing.T, version int, layout string, bulk bool) *place {
	t.Helper()
	p := &place{t: t, pending: "'PENDING'", processing: "'PROCESSING'", failed: "'FAILED'"}
	if layout == "outbox-messages" {
		p.pending, p.processing, p.failed = "0", "9", "3"
	}
	p.cfg = floor.Config{
		URL: servers.Database(t, version), Publication: `The "Rows"`, Table: `"The Shop".rows`, Layout: layout,
		Bulk: bulk, Batch: 40, Senders: 3,
	}
	p.cfg.Slot = "floor_" + p.cfg.URL[strings.LastIndexByte(p.cfg.URL, '_')+1:][:12]
	servers.Exec(t, p.cfg.URL, `CREATE SCHEMA "The Shop"`, "CREATE TABLE "+p.cfg.Table+" "+tables[layout],
		"CREATE INDEX ON "+p.cfg.Table+" (status, created_at)",
		`CREATE PUBLICATION "The ""Rows""" FOR TABLE `+p.cfg.Table+" WITH (publish = 'insert')",
		"SELECT pg_create_logical_replication_slot('"+p.cfg.Slot+"', 'pgoutput')")
	p.conn = servers.Connect(t, p.cfg.URL)
	return p
}

// start runs a floor until stop, or until the test ends, and returns when it reads.
func (p *place) start(to *receiver) {
	p.t.Helper()
	p.cfg.Endpoint = to.url
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.ended = cancel, make(chan error, 1)
	ready := make(chan struct{})
	go func() { p.ended <- floor.Run(ctx, p.cfg, func() { close(ready) }) }()
	p.t.Cleanup(func() {
		cancel()
		if p.ended != nil {
			_ = p.wait() // the test has failed already
		}
	})
	select {
	case <-ready:
	case err := <-p.ended:
		p.ended = nil
		p.t.Fatal(err)
	case <-time.After(patience):
		p.t.Fatal("the floor does not read")
	}
}

// wait waits for the floor's end.
func (p *place) wait() error {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended = nil
		return err
	case <-time.After(patience):
		p.t.Fatal("the floor does not end")
		return nil
	}
}

func (p *place) stop() {
	p.t.Helper()
	p.cancel()
	if err := p.wait(); err != nil {
		p.t.Error(err)
	}
}

// insert writes rows in one transaction. The payload is the id.
func (p *place) insert(ids ...string) {
	p.t.Helper()
	payloads := make([]string, len(ids))
	for i, id := range ids {
		text, err := json.Marshal(id)
		if err != nil {
			p.t.Fatal(err)
		}
		payloads[i] = string(text)
	}
	column := "text"
	if p.cfg.Layout == "outbox-messages" {
		column = "jsonb"
	}
	sql := "INSERT INTO " + p.cfg.Table + " (id, payload) SELECT id, payload::" + column + " FROM unnest($1::text[], $2::text[]) u(id, payload)"
	if _, err := p.conn.Exec(context.Background(), sql, ids, payloads); err != nil {
		p.t.Fatal(err)
	}
}

func numbered(name string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(name, " ", i)
	}
	return ids
}

func (p *place) count(where string) (n int) {
	p.t.Helper()
	if err := p.conn.QueryRow(context.Background(), "SELECT count(*) FROM "+p.cfg.Table+" WHERE "+where).Scan(&n); err != nil {
		p.t.Fatal(err)
	}
	return n
}

// awaitCompleted waits until all n rows are marked, or deleted.
func (p *place) awaitCompleted(n int) {
	p.t.Helper()
	p.within("rows are left", func() bool {
		if p.cfg.Layout == "outbox-messages" {
			return p.count("true") == 0
		}
		return p.count("status = 'COMPLETED' AND processed_at BETWEEN now() - interval '1 hour' AND now()") == n
	})
}

// awaitConfirmed waits until the slot has moved over all that is written by now.
func (p *place) awaitConfirmed() {
	p.t.Helper()
	ctx := context.Background()
	var end string
	if err := p.conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		p.t.Fatal(err)
	}
	p.within("the slot does not move on", func() (moved bool) {
		err := p.conn.QueryRow(ctx, "SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2",
			end, p.cfg.Slot).Scan(&moved)
		if err != nil {
			p.t.Fatal(err)
		}
		return moved
	})
}

func (p *place) within(what string, done func() bool) {
	p.t.Helper()
	over := time.After(patience)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case err := <-p.ended:
			p.ended = nil
			p.t.Fatalf("%s: the floor ended: %v", what, err)
		case <-over:
			p.t.Fatal(what)
		}
	}
}

// receiver takes JSON arrays of ids.
type receiver struct {
	url string

	mu      sync.Mutex
	ids     []string
	largest int // rows in a request
	grown   chan struct{}
	reply   func(http.ResponseWriter)
	hangs   bool
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{grown: make(chan struct{}), reply: func(http.ResponseWriter) {}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var ids []string
		if err == nil {
			err = json.Unmarshal(body, &ids)
		}
		if err != nil || req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s of %s: %q: %v", req.Method, req.Header.Get("Content-Type"), body, err)
		}
		if r.take(ids) {
			<-req.Context().Done()
		}
		r.reply(w)
	}))
	t.Cleanup(srv.Close)
	r.url = srv.URL + "/events"
	return r
}

// answer and hang are called before the floor starts.
func (r *receiver) answer(reply func(http.ResponseWriter)) { r.reply = reply }
func (r *receiver) hang()                                  { r.hangs = true }

func (r *receiver) take(ids []string) (hangs bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, ids...)
	r.largest = max(r.largest, len(ids))
	close(r.grown)
	r.grown = make(chan struct{})
	return r.hangs
}

func (r *receiver) await(t *testing.T, n int) {
	t.Helper()
	over := time.After(patience)
	for {
		r.mu.Lock()
		have, grown := len(r.ids), r.grown
		r.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-grown:
		case <-over:
			t.Fatalf("%d of %d rows arrived", have, n)
		}
	}
}

func (r *receiver) sorted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(slices.Values(r.ids))
}
