package sinktest

import (
	"bytes"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// testReuse: failures do not cost connections.
func (h Harness) testReuse(t *testing.T) {
	var n atomic.Int64
	codes := []int{500, 503, 400, 404, 302, 429}
	bodies := [][]byte{nil, []byte("no"), bytes.Repeat([]byte("x"), 8<<10), bytes.Repeat([]byte("x"), 30<<10)}
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		i := int(n.Add(1))
		w.WriteHeader(codes[i%len(codes)])
		_, _ = w.Write(bodies[i%len(bodies)])
	})

	s := h.New(t, srv.URL, longTimeout)
	const requests = 60 // five for each pair of a code and a body
	for range requests {
		if res := deliver(t, s, h.message("a")); res.At(0).Class == sink.Delivered {
			t.Fatal("a failure counted as delivered")
		}
	}

	if got := n.Load(); got != requests {
		t.Errorf("%d messages made %d requests", requests, got)
	}
	if got := srv.accepted.Load(); got > 2 {
		t.Errorf("%d requests took %d connections", requests, got)
	}
}

// testFailureKeepsOthers: a broken connection does not close the idle ones.
func (h Harness) testFailureKeepsOthers(t *testing.T) {
	const senders = 8
	var cut atomic.Bool
	var mu sync.Mutex
	waiting, all := 0, make(chan struct{})
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if cut.Load() {
			panic(http.ErrAbortHandler) // closes the connection
		}
		mu.Lock()
		waiting++
		release := all
		if waiting == senders {
			waiting, all = 0, make(chan struct{})
			close(release)
		}
		mu.Unlock()
		<-release
		h.Success(1).write(w)
	})

	s := h.New(t, srv.URL, longTimeout)
	together := func() {
		t.Helper()
		var wg sync.WaitGroup
		for range senders {
			wg.Go(func() {
				if res := deliver(t, s, h.message("a")); res.At(0).Class != sink.Delivered {
					t.Errorf("got %s: %s", res.At(0).Class, res.At(0).Detail)
				}
			})
		}
		wg.Wait()
	}

	together()
	cut.Store(true)
	const failures = 3
	for range failures {
		want(t, deliver(t, s, h.message("a")), 1, sink.Unavailable)
	}

	cut.Store(false)
	together()
	// A pool may dial once more than it needs while a connection becomes idle.
	if got := srv.accepted.Load(); got > senders+failures+1 {
		t.Errorf("%d connections for %d senders and %d failures", got, senders, failures)
	}
}
