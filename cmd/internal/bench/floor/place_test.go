package floor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const patience = 30 * time.Second

// place is a database with a table, a log and a floor.
type place struct {
	t                           *testing.T
	on                          server
	cfg                         floor.Config
	pending, processing, failed string // values of the status
	recent                      string // the condition that a row was claimed recently

	cancel context.CancelFunc
	ended  chan error
}

// server is the database of a place.
type server interface {
	exec(t *testing.T, statements ...string)
	insert(ctx context.Context, into string, ids, payloads []string) error
	count(ctx context.Context, from string) (int, error)
}

// kind is a test server, by its name.
type kind struct {
	name  string
	place func(t *testing.T, layout string) *place
}

func kinds() (all []kind) {
	for _, version := range servers.Versions() {
		all = append(all, kind{fmt.Sprint("pg", version), func(t *testing.T, layout string) *place { return newPostgres(t, version, layout) }})
	}
	for _, f := range servers.Flavours() {
		all = append(all, kind{string(f), func(t *testing.T, layout string) *place { return newMySQL(t, f, layout) }})
	}
	return all
}

func newPlace(t *testing.T, k kind, layout string, bulk bool) *place {
	t.Helper()
	p := k.place(t, layout)
	p.t, p.cfg.Layout, p.cfg.Bulk, p.cfg.Batch, p.cfg.Senders = t, layout, bulk, 40, 3
	p.pending, p.processing, p.failed = "'PENDING'", "'PROCESSING'", "'FAILED'"
	if layout == "outbox-messages" {
		p.pending, p.processing, p.failed = "0", "9", "3"
	}
	return p
}

func (p *place) exec(statements ...string) {
	p.t.Helper()
	p.on.exec(p.t, statements...)
}

// table returns the name of the table in SQL.
func (p *place) table() string {
	if p.cfg.Slot == "" {
		return "`" + p.cfg.Table + "`"
	}
	return p.cfg.Table
}

// start runs a floor until stop or the end of the test, and returns when it reads.
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
	if err := p.on.insert(context.Background(), p.table(), ids, payloads); err != nil {
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

func (p *place) count(where string) int {
	p.t.Helper()
	n, err := p.on.count(context.Background(), p.table()+" WHERE "+where)
	if err != nil {
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
		return p.count("status = 'COMPLETED' AND "+p.recent) == n
	})
}

// awaitConfirmed waits until the log is released up to its present end, if the server
// retains it for its reader.
func (p *place) awaitConfirmed() {
	p.t.Helper()
	if slot, keeps := p.on.(*pgServer); keeps {
		slot.awaitConfirmed(p)
	}
}

func (p *place) within(what string, done func() bool) {
	p.t.Helper()
	over := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case err := <-p.ended:
			p.ended = nil
			p.t.Fatalf("%s: the floor ended: %v", what, err)
		case <-over:
			p.t.Fatal(what)
		}
	}
}

// receiver accepts JSON arrays of ids.
type receiver struct {
	url string

	mu      sync.Mutex
	ids     []string
	largest int // maximum rows in a request
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

// expect checks that each row arrived once, in requests as large as the floor may make them.
func (r *receiver) expect(t *testing.T, cfg floor.Config, ids []string) {
	t.Helper()
	slices.Sort(ids)
	if got := r.sorted(); !slices.Equal(got, ids) {
		t.Errorf("got %q, want %q", got, ids)
	}
	limit := 1
	if cfg.Bulk {
		limit = cfg.Batch
	}
	if r.largest != limit {
		t.Errorf("the largest request had %d rows, want %d", r.largest, limit)
	}
}
