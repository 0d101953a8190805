package blackbox

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// switchProxy is a proxy that refuses connections until open, and then forwards them until shut.
type switchProxy struct {
	t       *testing.T
	address string
	to      string
	done    sync.WaitGroup

	mu      sync.Mutex
	up      bool
	closers []io.Closer // the listener and the connections, while it is open
}

func newSwitchProxy(t *testing.T, url string) *switchProxy {
	b := &switchProxy{t: t, address: freeAddress(t), to: strings.TrimPrefix(url, "http://")}
	t.Cleanup(b.shut)
	return b
}

func (b *switchProxy) url() string { return "http://" + b.address }

// keep records a closer, or closes it at once if the proxy is shut.
func (b *switchProxy) keep(closers ...io.Closer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.up {
		b.closers = append(b.closers, closers...)
		return
	}
	for _, c := range closers {
		_ = c.Close()
	}
}

// shut closes every connection and refuses new ones.
func (b *switchProxy) shut() {
	b.mu.Lock()
	for _, c := range b.closers {
		_ = c.Close()
	}
	b.up, b.closers = false, nil
	b.mu.Unlock()
	b.done.Wait()
}

// open starts to forward connections.
func (b *switchProxy) open() {
	b.t.Helper()
	l, err := net.Listen("tcp", b.address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	b.up = true
	b.mu.Unlock()
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
			b.keep(in, out)
			b.done.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			b.done.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
}
