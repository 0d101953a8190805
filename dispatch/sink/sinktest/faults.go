package sinktest

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// within fails the test if deliver takes longer than the short time-out allows.
func within(tb testing.TB, start time.Time) {
	tb.Helper()
	if took := time.Since(start); took > shortTimeout+slack {
		tb.Errorf("it took %s with a time-out of %s", took, shortTimeout)
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

// testSilence: a receiver that says nothing is given up.
func (h Harness) testSilence(t *testing.T) {
	srv := serveRaw(t, (*rawConn).hang)
	s := h.New(t, srv.url, shortTimeout)
	start := time.Now()
	want(t, deliver(t, s, h.message("a")), 1, sink.Unavailable)
	within(t, start)
}

// testEndless: a body that never ends does not hold a sender. What a failure
// means is known from its status all the same.
func (h Harness) testEndless(t *testing.T) {
	for _, c := range []struct {
		status int
		class  sink.Class
	}{{200, sink.Unavailable}, {400, sink.Rejected}, {500, sink.Refused}, {503, sink.Unavailable}} {
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

// testHugeAnswer: an answer of 100 MB is neither read whole nor kept.
func (h Harness) testHugeAnswer(t *testing.T) {
	const size = 100 << 20
	for _, c := range []struct {
		status int
		class  sink.Class
	}{{200, sink.Misconfigured}, {400, sink.Rejected}, {503, sink.Unavailable}} {
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			block := make([]byte, 64<<10)
			for i := range block {
				block[i] = 'x'
			}
			var wrote atomic.Int64
			srv := serveRaw(t, func(conn *rawConn) bool {
				if _, err := fmt.Fprintf(conn, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n", c.status, size); err != nil {
					return false
				}
				for wrote.Load() < size {
					n, err := conn.Write(block)
					wrote.Add(int64(n))
					if err != nil {
						return false
					}
				}
				return true
			})
			s := h.New(t, srv.url, longTimeout)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res := deliver(t, s, h.message("a"))
			runtime.ReadMemStats(&after)
			want(t, res, 1, c.class)
			if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
				t.Errorf("an answer of %d MB cost %d MB of memory", size>>20, got>>20)
			}
			// What a socket buffers may be some MB.
			if got := wrote.Load(); got > size/2 {
				t.Errorf("%d MB were read", got>>20)
			}
		})
	}
}

// testBrokenOff: without a whole answer nothing is known, and the row is sent
// again by the lane, not by the sink.
func (h Harness) testBrokenOff(t *testing.T) {
	ok := h.Success(1)
	for name, respond := range map[string]func(*rawConn) bool{
		"Reset":     (*rawConn).reset,
		"HalfClose": (*rawConn).halfClose,
		"InHeader": func(c *rawConn) bool {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Ty", ok.Status)
			return false
		},
		"InBody": func(c *rawConn) bool {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", ok.Status, len(ok.Body)+10, ok.Body)
			return false
		},
		"InChunk": func(c *rawConn) bool {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s \r\n", ok.Status, len(ok.Body)+1, ok.Body)
			return false
		},
		"Garbage": func(c *rawConn) bool {
			_, _ = fmt.Fprint(c, "SSH-2.0-OpenSSH_9.2\r\n")
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serveRaw(t, respond)
			s := h.New(t, srv.url, longTimeout)
			start := time.Now()
			want(t, deliver(t, s, h.message("a")), 1, sink.Unavailable)
			within(t, start)
			if n := srv.requests.Load(); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
		})
	}
}

// testNoRepeat: a request that may have arrived is not repeated, on a kept
// connection either, where an HTTP library may think it idempotent.
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
