package servers

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy is a network between a relay and its database. Cut, it carries nothing and
// tells nobody: connections stay open, new ones are not answered, and what was
// sent arrives once it is mended, as far as anybody still waits for it.
type Proxy struct {
	t        testing.TB
	to       string
	listener net.Listener
	work     sync.WaitGroup
	end      chan struct{} // closed at the end of the test

	mu        sync.Mutex
	connected chan struct{} // closed while the wire is whole
	conns     []net.Conn
}

// NewProxy returns a wire to the server of a database's URL, until the test ends.
func NewProxy(t testing.TB, database string) *Proxy {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Proxy{t: t, to: u.Host, listener: l, end: make(chan struct{}), connected: make(chan struct{})}
	close(w.connected)
	w.work.Go(w.accept)
	t.Cleanup(w.close)
	return w
}

// URL is the database's URL through the wire.
func (w *Proxy) URL(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = w.listener.Addr().String()
	return u.String()
}

// Disconnect ends what the wire carries.
func (w *Proxy) Disconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connected = make(chan struct{})
}

// Reconnect undoes Cut.
func (w *Proxy) Reconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.connected:
	default:
		close(w.connected)
	}
}

// carries waits until the wire is whole, and reports false once the test ends.
func (w *Proxy) carries() bool {
	w.mu.Lock()
	whole := w.connected
	w.mu.Unlock()
	select {
	case <-whole:
		return true
	case <-w.end:
		return false
	}
}

func (w *Proxy) accept() {
	for {
		in, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.keep(in)
		w.work.Go(func() { w.connect(in) })
	}
}

// keep closes a connection at the end of the test at the latest.
func (w *Proxy) keep(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	select {
	case <-w.end:
		_ = c.Close()
	default:
	}
}

func (w *Proxy) connect(in net.Conn) {
	defer func() { _ = in.Close() }()
	if !w.carries() {
		return
	}
	out, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	w.keep(out)
	var both sync.WaitGroup
	both.Go(func() { w.carry(out, in) })
	both.Go(func() { w.carry(in, out) })
	both.Wait()
}

// carry brings what one side says, and that it has hung up, to the other.
func (w *Proxy) carry(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !w.carries() {
			return
		}
		if _, writing := to.Write(buffer[:n]); writing != nil || err != nil {
			break
		}
	}
	_ = to.Close() // whoever hung up has heard all that it wanted to
	_, _ = io.Copy(io.Discard, from)
	_ = from.Close()
}

func (w *Proxy) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	close(w.end)
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.work.Wait()
}
