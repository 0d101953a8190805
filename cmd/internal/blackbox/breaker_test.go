package blackbox

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// breaker is an address that refuses connections until it is opened, and then
// passes them on.
type breaker struct {
	t       *testing.T
	address string
	to      string
	mu      sync.Mutex
	done    sync.WaitGroup
	closers []io.Closer
}

func newBreaker(t *testing.T, url string) *breaker {
	b := &breaker{t: t, address: freeAddress(t), to: strings.TrimPrefix(url, "http://")}
	t.Cleanup(func() {
		b.mu.Lock()
		for _, c := range b.closers {
			_ = c.Close()
		}
		b.mu.Unlock()
		b.done.Wait()
	})
	return b
}

func (b *breaker) url() string { return "http://" + b.address }

func (b *breaker) keep(c io.Closer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closers = append(b.closers, c)
}

// open begins to pass connections on.
func (b *breaker) open() {
	b.t.Helper()
	l, err := net.Listen("tcp", b.address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.keep(l)
	b.done.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", b.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			b.keep(in)
			b.keep(out)
			b.done.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			b.done.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
}
