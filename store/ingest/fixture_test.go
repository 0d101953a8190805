package ingest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ingest"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeTable is a writer that keeps rows in memory. The tests of a server beside a database are in
// package blackbox.
type fakeTable struct {
	mu      sync.Mutex
	rows    map[string]outbox.Row
	writes  [][]string    // the ids of each write
	begun   chan struct{} // gets a value for each write, unless nil
	release chan struct{} // lets a write go on, unless nil
	err     error
}

func (f *fakeTable) Write(ctx context.Context, _ *store.Outbox, rows []outbox.Row) ([]outbox.Written, error) {
	if f.begun != nil {
		f.begun <- struct{}{}
	}
	if f.release != nil {
		select {
		case <-f.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	var ids []string
	all := make([]outbox.Written, len(rows))
	for i, row := range rows {
		ids = append(ids, row.ID)
		have, known := f.rows[row.ID]
		all[i] = outbox.Written{Created: time.Unix(1e9, 5000)}
		switch {
		case row.ID == "refused":
			all[i].Err = &outbox.RowError{Key: "id", Problem: "not this one"}
		case known:
			all[i].Repeated = bytes.Equal(have.Payload, row.Payload)
			all[i].Conflict = !all[i].Repeated
		default:
			f.rows[row.ID] = row
		}
	}
	f.writes = append(f.writes, ids)
	return all, nil
}

// ReadSettled implements store.StatusReader: no row is settled.
func (f *fakeTable) ReadSettled(_ context.Context, rows []store.ClaimRow) ([]bool, error) {
	return make([]bool, len(rows)), nil
}

// recorder counts answers by status.
type recorder struct {
	mu       sync.Mutex
	statuses map[int]int
	rows     int
}

func (r *recorder) IngestAnswered(status int, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statuses[status]++
}

func (r *recorder) IngestBatch(_ string, rows []outbox.Row, _ []outbox.Written, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows += len(rows)
}

// fixture is a running server.
type fixture struct {
	t        *testing.T
	server   *ingest.Server
	table    *fakeTable
	observed *recorder
	url      string
	client   *http.Client
	stop     context.CancelFunc
	ended    chan error
}

func postboxOutbox(name string) store.Outbox {
	p, _ := layouts.Named("postbox")
	return store.Outbox{Name: name, Table: name, Layout: *p.Tables}
}

func config() ingest.Config {
	c := ingest.DefaultConfig()
	c.Listen = "127.0.0.1:0"
	c.MaxPayload = 1 << 20
	c.Outboxes = []store.Outbox{
		postboxOutbox("postbox"), postboxOutbox("private"), {Name: "orders", Table: "orders", Layout: store.OutboxMessages()}, {Name: "closed", Table: "closed", Layout: store.OutboxMessages()},
	}
	c.Clients = []ingest.Client{
		{Name: "shop", Token: ingest.HashToken("shop-token"), Outboxes: []string{"postbox", "private"}, Tenants: []int{1001, 1002}},
		{Name: "orders", Token: ingest.HashToken("orders-token"), Outboxes: []string{"orders"}},
	}
	return c
}

// serve starts a server, which ends with the test.
func serve(t *testing.T, change func(c *ingest.Config, table *fakeTable)) *fixture {
	t.Helper()
	f := &fixture{t: t, table: &fakeTable{rows: map[string]outbox.Row{}}, observed: &recorder{statuses: map[int]int{}}, ended: make(chan error, 1)}
	c := config()
	if change != nil {
		change(&c, f.table)
	}
	server, err := ingest.New(ingest.Options{Config: c, Writer: f.table, Statuses: f.table, Observer: f.observed, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = server.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	f.server, f.url = server, "http://"+server.Addr()
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	f.client = &http.Client{Transport: transport}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() { f.ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-f.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if !server.FreeMemory() {
			t.Error("a request has kept memory")
		}
	})
	return f
}

// answer is an answer of the server.
type answer struct {
	status      int
	header      http.Header
	text        string
	Status      int
	ID          string `json:"id"`
	CreatedAt   string `json:"created_at"`
	PayloadSize int    `json:"payload_size"`
	Error       string `json:"error"`
	Rows        []answer
}

// send sends a request. header has names and values.
func (f *fixture) send(path, token string, body io.Reader, header ...string) (*answer, error) {
	req, err := http.NewRequest(http.MethodPost, f.url+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	a := &answer{status: resp.StatusCode, header: resp.Header, text: string(text)}
	if resp.Close {
		resp.Header.Set("Connection", "close") // which the client has removed
	}
	if resp.Header.Get("Content-Type") == "application/json" {
		err = errors.Join(err, json.Unmarshal(text, a))
	}
	return a, err
}

// post is send that fails the test on an error of the connection.
func (f *fixture) post(path, token, body string, header ...string) *answer {
	f.t.Helper()
	a, err := f.send(path, token, bytes.NewReader([]byte(body)), header...)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(end) {
			t.Fatalf("after 20 s: not %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
