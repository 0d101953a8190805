package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// receiver receives the rows of a benchmark: an HTTP server, or a reader of a topic.
type receiver struct {
	server     *http.Server
	url        string            // of the server or of the broker
	topic      string            // of the broker; "" without one
	sink       config.Sink       // that sends rows here, without the keys of delivery
	secrets    map[string]string // of the sink, by key
	unordered  bool              // the rows of a group spread over the partitions of topic
	ended      chan error
	delay      time.Duration
	tally      atomic.Pointer[tally]
	bodies     sync.Pool
	replayed   atomic.Int64 // number of rows that a replay sent
	served     atomic.Int64 // number of answered requests
	servedTime atomic.Int64 // their total duration in ns
}

// eventsPath is the path that the relay and the floor post to, hookPath that of a relay with a webhook.
const (
	eventsPath = "/api/events/batch"
	hookPath   = "/hook"
)

// startReceiver starts a receiver on a free port of the loopback interface. The caller stops
// it.
func startReceiver(ctx context.Context, delay time.Duration) (*receiver, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start receiver: %w", err)
	}
	r := &receiver{
		url: "http://" + listener.Addr().String(), ended: make(chan error, 1), delay: delay,
		bodies: sync.Pool{New: func() any { return new(bytes.Buffer) }},
	}
	r.sink = config.Sink{Type: config.SinkFlowCatalyst, APIBaseURL: config.URL(r.url)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+eventsPath, r.handle)
	mux.HandleFunc("POST "+hookPath, r.handle)
	r.server = &http.Server{Handler: mux, ReadHeaderTimeout: callTimeout, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { r.ended <- r.server.Serve(listener) }()
	return r, nil
}

// endpoint returns the address that the floor sends rows to.
func (r *receiver) endpoint() string {
	if r.topic != "" {
		return r.url
	}
	return r.url + eventsPath
}

func (r *receiver) stop() error {
	err := r.server.Close()
	if served := <-r.ended; !errors.Is(served, http.ErrServerClosed) {
		return fmt.Errorf("receiver: %w", served)
	}
	return err
}

// handle answers a request. The first API needs no body. The present one, whose requests are
// objects, returns a result for each row.
func (r *receiver) handle(w http.ResponseWriter, req *http.Request) {
	body := r.bodies.Get().(*bytes.Buffer)
	body.Reset()
	defer r.bodies.Put(body)
	if _, err := body.ReadFrom(req.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	began := time.Now()
	if req.Header.Get("Sluicebox-Replay") != "" {
		r.replayed.Add(int64(bytes.Count(body.Bytes(), []byte(payloadHead))))
	} else if t := r.tally.Load(); t != nil && !t.record(body.Bytes(), began) {
		w.Header().Set("Retry-After", "1") // so that the refusal does not count against the row
		http.Error(w, "refused on purpose", http.StatusServiceUnavailable)
		return
	}
	if r.delay > 0 {
		time.Sleep(r.delay)
		r.served.Add(1)
		r.servedTime.Add(int64(time.Since(began)))
	}

	w.Header()["Date"] = nil
	w.WriteHeader(http.StatusOK)
	if req.URL.Path == eventsPath && bytes.HasPrefix(body.Bytes(), []byte("{")) {
		const result = `{"id":"bench","status":"SUCCESS"},`
		rows := strings.Repeat(result, bytes.Count(body.Bytes(), []byte(payloadHead)))
		_, _ = io.WriteString(w, `{"results":[`+strings.TrimSuffix(rows, ",")+"]}") // a client that is gone sends the request again
	}
}

// awaitReplayed waits until a replay has sent its first row.
func (r *receiver) awaitReplayed(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stallTimeout, fmt.Errorf("replay sent no row for %s", stallTimeout))
	defer cancel()
	for r.replayed.Load() == 0 {
		if err := backoff.Sleep(ctx, time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// serviceTime returns the mean duration of a request.
func (r *receiver) serviceTime() time.Duration {
	return time.Duration(r.servedTime.Load() / max(1, r.served.Load()))
}

// firstBlockedRow is the number of the first row that is refused.
const firstBlockedRow = 1_000_000_000_000

// tally records the arrivals of the rows of a round, which have consecutive numbers from
// first on.
type tally struct {
	first, count, groups int
	commits              []atomic.Int64 // Unix ns of the return of COMMIT, 0 before it

	mu                              sync.Mutex
	request                         []int // rows of the request being read
	arrivals                        []int64
	latest                          []int // the latest arrived row of each group
	arrived                         int
	duplicates, outOfOrder, unknown int
	firstRequestRows                int // rows in the first request
	begin, end                      time.Time
	done                            chan struct{} // closed once all rows have arrived
}

func newTally(first, count, groups int) *tally {
	return &tally{
		first: first, count: count, groups: groups, commits: make([]atomic.Int64, count),
		arrivals: make([]int64, count), latest: make([]int, groups), done: make(chan struct{}),
	}
}

func (t *tally) committed(n int, at time.Time) { t.commits[n-t.first].Store(at.UnixNano()) }

// record records the rows of a request. It returns false if one of them must be refused.
func (t *tally) record(body []byte, at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.request = t.request[:0]
	for {
		i := bytes.Index(body, []byte(payloadHead))
		if i < 0 || len(body) < i+len(payloadHead)+idDigits {
			break
		}
		body = body[i+len(payloadHead):]
		n, err := strconv.Atoi(string(body[:idDigits]))
		if err != nil {
			n = 0 // not a row of the benchmark
		}
		if n >= firstBlockedRow {
			return false
		}
		t.request = append(t.request, n)
	}

	before := t.arrived
	for _, n := range t.request {
		t.recordRow(n, at)
	}
	if before == 0 && t.arrived > 0 {
		t.begin, t.firstRequestRows = at, t.arrived
	}
	if t.end = at; t.arrived == t.count && before < t.count {
		close(t.done)
	}
	return true
}

func (t *tally) recordRow(n int, at time.Time) {
	k := n - t.first
	switch {
	case k < 0 || k >= t.count:
		t.unknown++
	case t.arrivals[k] != 0:
		t.duplicates++
	default:
		t.arrivals[k] = at.UnixNano()
		t.arrived++
		if g := n % t.groups; n < t.latest[g] {
			t.outOfOrder++
		} else {
			t.latest[g] = n
		}
	}
}

// stallTimeout is the maximum time without an arriving row.
const stallTimeout = 30 * time.Second

// wait waits until every row has arrived.
func (t *tally) wait(ctx context.Context) error {
	last, moved := 0, time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-t.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		t.mu.Lock()
		now := t.arrived
		t.mu.Unlock()
		if now > last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > stallTimeout {
			return fmt.Errorf("%d of %d rows missing; none arrived for %s", t.count-now, t.count, stallTimeout)
		}
	}
}

// check returns an error if rows arrived twice, out of order or from elsewhere.
func (t *tally) check(ordered bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.duplicates > 0 || t.unknown > 0 || ordered && t.outOfOrder > 0 {
		return fmt.Errorf("of %d rows, %d arrived twice, %d before an earlier row of their group, and %d were never written",
			t.count, t.duplicates, t.outOfOrder, t.unknown)
	}
	return nil
}
