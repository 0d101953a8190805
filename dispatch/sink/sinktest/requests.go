package sinktest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// testPayload: payloads arrive byte for byte and in order.
func (h Harness) testPayload(t *testing.T) {
	bodies := make(chan []byte, 1)
	var n atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read the request: %v", err)
		}
		bodies <- b
		h.Success(int(n.Load())).write(w)
	})

	s := h.New(t, srv.URL, longTimeout)
	payloads := [][]byte{
		[]byte(`{"id":"1","n":1.0,"big":12345678901234567890,"e":1e2}`),
		[]byte("{ \"id\" : \"2\",\t\"a\":[ 1 , 2 ] }"),
		[]byte(`{"id":"3","html":"<b>&\u003c</b>","esc":"\/\ud83d\ude00\u0000"}`),
		[]byte(`{"id":"4","k":1,"k":2,"utf8":"Grüße 😀","sep":"` + "\u2028" + `"}`),
		[]byte(`{"id":"5","big":"` + string(bytes.Repeat([]byte("x"), 200_000)) + `"}`),
	}

	for size := 1; size <= h.several(s); size++ {
		n.Store(int64(size))
		msgs := h.messages(size)
		for i := range msgs {
			msgs[i].Payload = slices.Clone(payloads[i])
		}
		want(t, deliver(t, s, msgs...), size, sink.Delivered)
		body := <-bodies
		for i := range msgs {
			at := bytes.Index(body, payloads[i])
			if at < 0 {
				t.Fatalf("payload %d of %d is not in the body as it is: %.300q", i+1, size, body)
			}
			body = body[at+len(payloads[i]):]
			if !bytes.Equal(msgs[i].Payload, payloads[i]) {
				t.Fatalf("the sink changed payload %d", i+1)
			}
		}
	}
}

// testIdempotencyKey: a row has the same key on every attempt.
func (h Harness) testIdempotencyKey(t *testing.T) {
	var mu sync.Mutex
	var keys []string
	var code int
	answers := []int{503, 500, 429, 0}
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Header.Values("Idempotency-Key")...)
		if code != 0 {
			w.WriteHeader(code)
			return
		}
		h.Success(1).write(w)
	})

	s := h.New(t, srv.URL, longTimeout)
	for i, answer := range answers {
		mu.Lock()
		code = answer
		mu.Unlock()
		m := h.message("0HZXEQ5Y8JY5Z")
		m.Attempt = i + 1
		deliver(t, s, m)
	}

	mu.Lock()
	defer mu.Unlock()

	if want := slices.Repeat([]string{"0HZXEQ5Y8JY5Z"}, len(answers)); !slices.Equal(keys, want) {
		t.Errorf("the keys are %q, want %q", keys, want)
	}
}

// testReplay: a request with rows of a replay names the replay, and no other request
// does. The rows and the key are the same as the first time, except with ReplayInBody.
func (h Harness) testReplay(t *testing.T) {
	type request struct {
		replay []string
		key    string
		body   []byte
	}

	requests := make(chan request, 1)
	var n atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read the request: %v", err)
		}
		requests <- request{r.Header.Values("Sluicebox-Replay"), r.Header.Get("Idempotency-Key"), b}
		h.Success(int(n.Load())).write(w)
	})

	s := h.New(t, srv.URL, longTimeout)
	for size := 1; size <= h.several(s); size++ {
		n.Store(int64(size))
		var live request
		for _, replay := range []string{"", "k3jq7c2mzt5ad", "", "a\r\nX-Injected: 1"} {
			msgs := h.messages(size)
			for i := range msgs {
				msgs[i].Replay = replay
			}
			want(t, deliver(t, s, msgs...), size, sink.Delivered)
			got := <-requests
			if replay == "" {
				if live = got; got.replay != nil {
					t.Errorf("%d live rows have Sluicebox-Replay %q", size, got.replay)
				}
				continue
			}
			if id, err := url.PathUnescape(strings.Join(got.replay, ",")); id != replay || err != nil {
				t.Errorf("%d rows of the replay %q have Sluicebox-Replay %q", size, replay, got.replay)
			}
			if got.key != live.key || bytes.Equal(got.body, live.body) == h.ReplayInBody {
				t.Errorf("%d rows of a replay are sent under %q as %.200q, live ones under %q as %.200q",
					size, got.key, got.body, live.key, live.body)
			}
		}
	}
}

// testHeaderInjection: no id breaks a request or adds a header to it.
func (h Harness) testHeaderInjection(t *testing.T) {
	headers := make(chan http.Header, 1)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header.Clone()
		h.Success(1).write(w)
	})

	s := h.New(t, srv.URL, longTimeout)
	names := func(head http.Header) []string {
		delete(head, "Idempotency-Key") // a long id has none
		return slices.Sorted(maps.Keys(head))
	}

	want(t, deliver(t, s, h.message("x")), 1, sink.Delivered)
	usual := names(<-headers)
	seen := map[string]string{}
	for _, id := range []string{
		"", "a b", "a\r\nX-Injected: 1", "a\nX-Injected: 1", "a\x00b", "é", "\xff\xfe", "100%", "a%20b", "\u2028",
		string(bytes.Repeat([]byte("k"), 100_000)),
	} {
		m := h.message("x")
		m.ID = id
		res := deliver(t, s, m)
		if id == "" && res.At(0).Class == sink.Rejected {
			continue // a sink whose receivers require an id
		}
		want(t, res, 1, sink.Delivered)
		got := <-headers
		key := got.Get("Idempotency-Key")
		if list := names(got); !slices.Equal(list, usual) {
			t.Errorf("the id %.40q makes the headers %q of %q", id, list, usual)
		}
		if other, twice := seen[key]; twice && key != "" {
			t.Errorf("the ids %.40q and %.40q have the same key %.40q", id, other, key)
		}
		seen[key] = id
	}
}

// testConcurrent: many senders share a sink, and each message arrives once.
func (h Harness) testConcurrent(t *testing.T) {
	const senders, each = 16, 25
	var mu sync.Mutex
	arrived := map[string]int{}
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read the request: %v", err)
		}
		mu.Lock()
		arrived[string(b)]++
		mu.Unlock()
		h.Success(1).write(w)
	})

	s := h.New(t, srv.URL, longTimeout)
	ctx, cancel := context.WithTimeout(t.Context(), longTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for g := range senders {
		wg.Go(func() {
			for i := range each {
				m := h.message(fmt.Sprintf("%d-%d", g, i))
				if res := s.Deliver(ctx, []sink.Message{m}); res.At(0).Class != sink.Delivered {
					t.Errorf("message %s: %s %s", m.ID, res.At(0).Class, res.At(0).Detail)
				}
				s.Limits(h.Kind)
			}
		})
	}

	wg.Wait()
	if len(arrived) != senders*each {
		t.Errorf("%d different requests arrived, want %d", len(arrived), senders*each)
	}

	for body, n := range arrived {
		if n != 1 {
			t.Errorf("%s arrived %d times", body, n)
		}
	}
}
