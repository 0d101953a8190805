package sinktest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// Received is one item of a request that reached the receiver.
type Received struct {
	// ID is the payload's "id", empty if it has none. For a webhook it is the
	// webhook-id.
	ID string

	// Kind is the kind of the path, empty for an unknown path. For a webhook it is
	// the kind in its headers, if any.
	Kind string

	// Payload is the item, byte for byte, without surrounding blanks.
	Payload []byte

	// At is when the request was read.
	At time.Time

	// Request is the number of the request, from 1, and Index the item's position in
	// it.
	Request, Index int

	// Key is the request's Idempotency-Key.
	Key string

	// Replay is the request's Sluicebox-Replay, "" for live rows.
	Replay string

	// Status is the status of the response, 0 if the connection was closed instead.
	// It is set just before the response is written.
	Status int

	// Accepted reports whether the receiver accepted the item: a 2xx, and SUCCESS or
	// SKIPPED if the response has a result for each item. The client may still have
	// missed the response.
	Accepted bool
}

// Request is the argument of a Script.
type Request struct {
	N      int // from 1, in the order in which requests were read
	Method string
	Path   string
	Kind   string
	Header http.Header
	Body   []byte
	Items  []Received
}

// IDs returns the ids of the items, in order.
func (r *Request) IDs() []string {
	ids := make([]string, len(r.Items))
	for i := range r.Items {
		ids[i] = r.Items[i].ID
	}
	return ids
}

// Answer is the receiver's reaction to a request. The zero value accepts all items,
// with the status and body of the request's wire.
type Answer struct {
	Status int // 0 stands for the wire's success
	Header http.Header

	// Body is sent as it is, if set. Otherwise a success has a list of results.
	Body []byte

	// ItemStatuses has the statuses of the results, by position. Missing ones are
	// SUCCESS.
	ItemStatuses []string

	// Delay is the time before the response. It ends early when the client is gone.
	Delay time.Duration

	// Release holds the response back until it is closed, if set.
	Release <-chan struct{}

	// Disconnect closes the connection instead of a response. With a 2xx as Status
	// the items are accepted all the same, and only the acknowledgement is lost.
	Disconnect bool

	// Astray responds on behalf of something else in the receiver's place, for
	// example a proxy with an error page. No item is accepted, whatever Status is.
	Astray bool

	// WriteRest writes the rest of the body after Body, if set. The context ends when
	// the client has gone.
	WriteRest func(client context.Context, body io.Writer)

	// Written is called once the response is written, if set. The context has ended if
	// the client has gone before.
	Written func(client context.Context)
}

// Script returns the response to a request. It is called from several goroutines at
// once.
type Script func(*Request) Answer

// Receiver is an HTTP receiver that speaks both wires of the FlowCatalyst API. It
// also accepts webhooks, which have a webhook-id, at any path. All methods are safe
// for concurrent use.
type Receiver struct {
	server *httptest.Server
	closed chan struct{}

	mu       sync.Mutex
	script   Script
	clients  int // open connections
	requests int
	log      []Received
	taken    map[itemKey]int // number of times
	changed  chan struct{}   // closed and replaced with each accepted item
}

type itemKey struct{ kind, id string }

// NewReceiver starts a receiver that accepts everything. It stops when the test ends.
func NewReceiver(tb testing.TB) *Receiver {
	tb.Helper()
	r := &Receiver{
		closed:  make(chan struct{}),
		taken:   map[itemKey]int{},
		changed: make(chan struct{}),
	}

	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.server.Config.ConnState = r.connection
	r.server.Start()
	tb.Cleanup(func() {
		close(r.closed) // ends delays and holds
		r.server.CloseClientConnections()
		r.server.Close()
	})
	return r
}

// URL returns the receiver's base address.
func (r *Receiver) URL() string { return r.server.URL }

func (r *Receiver) connection(_ net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch state {
	case http.StateNew:
		r.clients++
	case http.StateClosed, http.StateHijacked:
		r.clients--
	case http.StateActive, http.StateIdle:
	}
}

// Clients returns the number of open connections. Once it is 0 after a client's end, all that the
// client has sent is in the Log.
func (r *Receiver) Clients() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clients
}

// Script sets the script for requests from now on; nil accepts everything.
func (r *Receiver) Script(s Script) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = s
}

// Log returns all items that arrived, in the order in which requests were read.
func (r *Receiver) Log() []Received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log)
}

// Accepted returns the accepted items, in the order in which their requests were
// read.
func (r *Receiver) Accepted() []Received {
	return slices.DeleteFunc(r.Log(), func(x Received) bool { return !x.Accepted })
}

// Counts are the totals of a Receiver.
type Counts struct {
	Requests   int
	Items      int // items in all requests
	Distinct   int // different (kind, id) that were accepted
	Duplicates int // accepted items beyond the first of each
}

// Counts returns the totals so far.
func (r *Receiver) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()

	c := Counts{Requests: r.requests, Items: len(r.log), Distinct: len(r.taken)}
	for _, n := range r.taken {
		c.Duplicates += n - 1
	}
	return c
}

// Wait returns nil once n different items have been accepted. If the context ends
// first, the error has the number of items.
func (r *Receiver) Wait(ctx context.Context, n int) error {
	for {
		r.mu.Lock()
		have, changed := len(r.taken), r.changed
		r.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d items arrived: %w", have, n, ctx.Err())
		}
	}
}

func (r *Receiver) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the client is gone
	}

	kind, items, one := webhook(req.Header, body)
	wireItems := false
	if !one {
		kind = kindOf(req.URL.Path)
		items, wireItems, err = parse(body)
		if err != nil || kind == "" || req.Method != http.MethodPost {
			r.note(&Request{Method: req.Method, Path: req.URL.Path, Kind: kind, Header: req.Header, Body: body})
			status := http.StatusBadRequest
			if kind == "" {
				status = http.StatusNotFound
			}
			http.Error(w, fmt.Sprintf("not a batch: %v", err), status)
			return
		}
	}

	request := &Request{Method: req.Method, Path: req.URL.Path, Kind: kind, Header: req.Header, Body: body, Items: items}
	script, first := r.note(request)
	var a Answer
	if script != nil {
		a = script(request)
	}

	r.hold(req.Context(), a)
	a.fill(kind, wireItems, len(items))
	r.settle(first, len(items), &a)
	if a.Disconnect {
		panic(http.ErrAbortHandler) // makes net/http close the connection
	}

	for k, v := range a.Header {
		w.Header()[k] = v
	}

	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
	if a.WriteRest != nil {
		_ = http.NewResponseController(w).Flush()
		a.WriteRest(req.Context(), w)
	}
	if a.Written != nil {
		a.Written(req.Context())
	}
}

// note logs a request. It returns the script for the request and the position of its
// first item in the log.
func (r *Receiver) note(req *Request) (Script, int) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.requests++
	req.N = r.requests
	now, first := time.Now(), len(r.log)
	for i := range req.Items {
		it := &req.Items[i]
		it.Kind, it.At, it.Request, it.Index = req.Kind, now, req.N, i
		it.Key, it.Replay = req.Header.Get("Idempotency-Key"), req.Header.Get("Sluicebox-Replay")
	}

	r.log = append(r.log, req.Items...)
	return r.script, first
}

// hold waits as the answer requires.
func (r *Receiver) hold(client context.Context, a Answer) {
	if a.Release != nil {
		select {
		case <-a.Release:
		case <-client.Done():
		case <-r.closed:
		}
	}

	if a.Delay > 0 {
		timer := time.NewTimer(a.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-client.Done():
		case <-r.closed:
		}
	}
}

// settle records the outcome of the items in the log.
func (r *Receiver) settle(first, n int, a *Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for i := range n {
		it := &r.log[first+i]
		it.Status = a.Status
		if a.Disconnect {
			it.Status = 0
		}
		it.Accepted = a.takes(i)
		if it.Accepted {
			r.taken[itemKey{it.Kind, it.ID}]++
		}
	}

	close(r.changed)
	r.changed = make(chan struct{})
}

// takes reports whether the answer accepts item i.
func (a *Answer) takes(i int) bool {
	if a.Status < 200 || a.Status > 299 || a.Astray {
		return false
	}
	return i >= len(a.ItemStatuses) || a.ItemStatuses[i] == "SUCCESS" || a.ItemStatuses[i] == "SKIPPED"
}

// fill sets the API's defaults.
func (a *Answer) fill(kind string, wireItems bool, n int) {
	if a.Status == 0 && !a.Disconnect {
		a.Status = http.StatusCreated
		if kind == "AUDIT_LOG" {
			a.Status = http.StatusOK
		}
	}

	if a.Header == nil {
		a.Header = http.Header{"Content-Type": {"application/json"}}
	}

	success := a.Status >= 200 && a.Status < 300
	if a.Body != nil || !success || !wireItems {
		return
	}

	a.Body = Results(n, a.ItemStatuses...)
}

// Results returns the API's response to n items: the given statuses by position,
// SUCCESS for the rest.
func Results(n int, words ...string) []byte {
	type result struct {
		ID     string `json:"id"`
		Status string `json:"status"`
		Error  string `json:"error,omitempty"`
	}

	list := make([]result, n)
	for i := range list {
		list[i] = result{ID: fmt.Sprintf("platform-%d", i), Status: "SUCCESS"}
		if i < len(words) && words[i] != "SUCCESS" {
			list[i].Status = words[i]
			if words[i] != "SKIPPED" {
				list[i].Error = fmt.Sprintf("item %d would not do", i)
			}
		}
	}

	b, err := json.Marshal(map[string]any{"results": list})
	if err != nil {
		panic(err) // strings only: cannot fail
	}
	return b
}
