package sinktest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// within fails the test if deliver took longer than shortTimeout and slack.
func within(tb testing.TB, start time.Time) {
	tb.Helper()
	if took := time.Since(start); took > shortTimeout+slack {
		tb.Errorf("it took %s with a timeout of %s", took, shortTimeout)
	}
}

func (h Harness) testDeadPort(t *testing.T) {
	s := h.New(t, deadURL(t), longTimeout)
	start := time.Now()
	want(t, deliver(t, s, h.message("a")), 1, sink.Unavailable)
	within(t, start)
}

func (h Harness) testCancelled(t *testing.T) {
	arrived := make(chan struct{}, 1)
	srv := serveRaw(t, func(c *rawConn) bool {
		arrived <- struct{}{}
		return c.hang()
	})

	s := h.New(t, srv.url, longTimeout)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, deliverCtx(ctx, s, h.message("a")), 1, sink.Unavailable)
	if n := srv.requests.Load(); n != 0 {
		t.Errorf("%d requests under a context that had ended", n)
	}

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	done := make(chan sink.Result, 1)
	go func() { done <- deliverCtx(ctx, s, h.message("a")) }()
	<-arrived
	start := time.Now()
	cancel()
	want(t, <-done, 1, sink.Unavailable)
	within(t, start)
}

func deliverCtx(ctx context.Context, s sink.Sink, msgs ...sink.Message) sink.Result {
	return s.Deliver(ctx, msgs)
}

// testSilence: a request to a silent receiver times out.
func (h Harness) testSilence(t *testing.T) {
	srv := serveRaw(t, (*rawConn).hang)
	s := h.New(t, srv.url, shortTimeout)
	start := time.Now()
	want(t, deliver(t, s, h.message("a")), 1, sink.Unavailable)
	within(t, start)
}

// testEndless: a body that never ends does not hold a sender. The status alone
// classifies a failure.
func (h Harness) testEndless(t *testing.T) {
	for _, c := range []struct {
		status int
		class  sink.Class
	}{{200, h.onSuccess(sink.Unavailable)}, {400, sink.Rejected}, {500, sink.Refused}, {503, sink.Unavailable}} {
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			srv := serveRaw(t, func(conn *rawConn) bool {
				if _, err := fmt.Fprintf(conn, "HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n", c.status); err != nil {
					return false
				}
				tick := time.NewTicker(5 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-conn.stop:
						return false
					case <-tick.C:
					}
					if _, err := conn.Write([]byte("1\r\n \r\n")); err != nil {
						return false
					}
				}
			})
			start := time.Now()
			want(t, deliver(t, h.New(t, srv.url, shortTimeout), h.message("a")), 1, c.class)
			within(t, start)
		})
	}
}

// testHugeAnswer: a body of 100 MB is neither read whole nor kept, with or without a
// length.
func (h Harness) testHugeAnswer(t *testing.T) {
	const size = 100 << 20
	for _, c := range []struct {
		status int
		class  sink.Class
	}{{200, h.onSuccess(sink.Misconfigured)}, {400, sink.Rejected}, {503, sink.Unavailable}} {
		for name, head := range map[string]string{
			"length":    fmt.Sprintf("Content-Length: %d\r\n\r\n", size),
			"chunked":   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size),
			"until-end": "Connection: close\r\n\r\n",
		} {
			t.Run(fmt.Sprintf("%d/%s", c.status, name), func(t *testing.T) {
				srv, wrote := flood(t, fmt.Sprintf("HTTP/1.1 %d X\r\n%s", c.status, head), size)
				s := h.New(t, srv.url, longTimeout)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				res := deliver(t, s, h.message("a"))
				runtime.ReadMemStats(&after)
				want(t, res, 1, c.class)
				if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
					t.Errorf("an answer of %d MB cost %d MB of memory", size>>20, got>>20)
				}
				// A socket may buffer some MB.
				if got := wrote.Load(); got > size/2 {
					t.Errorf("%d MB were read", got>>20)
				}
			})
		}
	}
}

// testHugeHeader: a response that never gets to its body fails.
func (h Harness) testHugeHeader(t *testing.T) {
	const size = 100 << 20
	srv, wrote := flood(t, "HTTP/1.1 200 X\r\nX-Long: ", size)
	start := time.Now()
	want(t, deliver(t, h.New(t, srv.url, longTimeout), h.message("a")), 1, sink.Unavailable)
	within(t, start)
	if got := wrote.Load(); got > size/2 {
		t.Errorf("%d MB were read", got>>20)
	}
}

// flood starts a server that responds with head and then size bytes. It counts the
// bytes that it wrote.
func flood(tb testing.TB, head string, size int64) (*rawServer, *atomic.Int64) {
	tb.Helper()
	block := bytes.Repeat([]byte("x"), 64<<10)
	wrote := new(atomic.Int64)
	return serveRaw(tb, func(conn *rawConn) bool {
		if _, err := conn.Write([]byte(head)); err != nil {
			return false
		}
		for sent := int64(0); sent < size; {
			n, err := conn.Write(block)
			sent += int64(n)
			wrote.Add(int64(n))
			if err != nil {
				return false
			}
		}
		return false
	}), wrote
}

// testFlatMemory: an attempt leaves nothing in memory, whatever its outcome.
func (h Harness) testFlatMemory(t *testing.T) {
	const attempts, size, most = 70, 1 << 20, 2 << 20 // each code with and without an end of the connection
	var n atomic.Int64
	codes := []int{400, 413, 429, 500, 503, 404, 302}
	page := bytes.Repeat([]byte("x"), size)
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		i := int(n.Add(1))
		w.Header().Set("Retry-After", "86400")
		w.WriteHeader(codes[i%len(codes)])
		if i%10 == 0 {
			panic(http.ErrAbortHandler) // closes the connection
		}
		_, _ = w.Write(page)
	})

	s := h.New(t, srv.URL, longTimeout)
	inUse := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}

	deliver(t, s, h.message("a"))
	before := inUse()
	for range attempts {
		if res := deliver(t, s, h.message("a")); res.At(0).Class == sink.Delivered {
			t.Fatal("a failure counted as delivered")
		}
	}

	if after := inUse(); after > before+most {
		t.Errorf("%d answers of %d MB left %d MB in memory", attempts, size>>20, (after-before)>>20)
	}
}

// testBrokenOff: an incomplete response leaves the outcome unknown. The lane sends
// the row again, not the sink.
func (h Harness) testBrokenOff(t *testing.T) {
	ok := h.Success(1)
	cut := h.onSuccess(sink.Unavailable) // after the status line of a 2xx
	for name, c := range map[string]struct {
		class   sink.Class
		respond func(*rawConn) bool
	}{
		"Reset":     {sink.Unavailable, (*rawConn).reset},
		"HalfClose": {sink.Unavailable, (*rawConn).halfClose},
		"InHeader": {sink.Unavailable, func(c *rawConn) bool {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Ty", ok.Status)
			return false
		}},
		"InBody": {cut, func(c *rawConn) bool {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", ok.Status, len(ok.Body)+10, ok.Body)
			return false
		}},
		"InChunk": {cut, func(c *rawConn) bool {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s \r\n", ok.Status, len(ok.Body)+1, ok.Body)
			return false
		}},
		"Garbage": {sink.Unavailable, func(c *rawConn) bool {
			_, _ = fmt.Fprint(c, "SSH-2.0-OpenSSH_9.2\r\n")
			return false
		}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serveRaw(t, c.respond)
			s := h.New(t, srv.url, longTimeout)
			start := time.Now()
			want(t, deliver(t, s, h.message("a")), 1, c.class)
			within(t, start)
			if n := srv.requests.Load(); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
		})
	}
}

// testNoRepeat: a request that may have arrived is not repeated, even on a reused
// connection, where an HTTP library may consider it idempotent.
func (h Harness) testNoRepeat(t *testing.T) {
	for name, end := range map[string]func(*rawConn) bool{
		"Reset":     (*rawConn).reset,
		"HalfClose": (*rawConn).halfClose,
		"Close":     func(*rawConn) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			srv := serveRaw(t, func(c *rawConn) bool {
				if c.n == 1 {
					return c.reply(h.Success(1))
				}
				return end(c)
			})
			s := h.New(t, srv.url, longTimeout)
			want(t, deliver(t, s, h.message("a")), 1, sink.Delivered)
			want(t, deliver(t, s, h.message("b")), 1, sink.Unavailable)
			if n := srv.requests.Load(); n != 2 {
				t.Errorf("two messages made %d requests", n)
			}
			want(t, deliver(t, s, h.message("b")), 1, sink.Delivered)
		})
	}
}
