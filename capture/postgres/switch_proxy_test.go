package postgres_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// switchProxy forwards to one server, and later to another.
type switchProxy struct {
	t    *testing.T
	l    net.Listener
	mu   sync.Mutex
	to   string
	open []net.Conn
	all  sync.WaitGroup
}

func newSwitchProxy(t *testing.T, to string) *switchProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &switchProxy{t: t, l: l, to: to}
	p.all.Go(p.serve)
	t.Cleanup(func() {
		_ = l.Close()
		p.switchTo("")
		p.all.Wait()
	})
	return p
}

func (p *switchProxy) serve() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = in.Close()
		} else {
			p.open = append(p.open, in, out)
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				p.all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
		p.mu.Unlock()
	}
}

// switchTo closes every connection and forwards new ones elsewhere.
func (p *switchProxy) switchTo(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for _, c := range p.open {
		_ = c.Close()
	}
	p.open = nil
}
