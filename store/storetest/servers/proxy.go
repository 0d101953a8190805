package servers

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy between a relay and its database. After Disconnect it transfers
// nothing and reports nothing: connections stay open, and new ones get no response. After
// Reconnect it delivers the pending data to the connections that still exist.
type Proxy struct {
	t        testing.TB
	to       string
	listener net.Listener
	work     sync.WaitGroup
	end      chan struct{} // closed at the end of the test

	mu        sync.Mutex
	connected chan struct{} // closed while connected
	refuses   bool          // ends each new connection
	delay     time.Duration // before each transfer
	conns     []net.Conn
}

// NewProxy starts a proxy to the server of a database URL. It ends with the test.
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

// URL returns the database URL through the proxy.
func (w *Proxy) URL(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = w.listener.Addr().String()
	return u.String()
}

// Disconnect interrupts all transfers.
func (w *Proxy) Disconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connected = make(chan struct{})
}

// Reconnect undoes Disconnect.
func (w *Proxy) Reconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.connected:
	default:
		close(w.connected)
	}
}

// Reset ends all connections with a TCP reset. With refuse, new ones end as well until Accept.
func (w *Proxy) Reset(refuse bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuses = refuse
	for _, c := range w.conns {
		reset(c)
	}
	w.conns = nil
}

// Accept undoes the refusal of Reset.
func (w *Proxy) Accept() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuses = false
}

// Delay delays each transfer, in both directions, from now on.
func (w *Proxy) Delay(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = by
}

// HalfClose ends the sending half of all connections, on both sides. They can still be read.
func (w *Proxy) HalfClose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if c, isTCP := c.(*net.TCPConn); isTCP {
			_ = c.CloseWrite() // it may have ended
		}
	}
}

// reset closes a connection with a TCP reset, because data that is not sent yet is dropped.
func reset(c net.Conn) {
	if c, isTCP := c.(*net.TCPConn); isTCP {
		_ = c.SetLinger(0)
	}
	_ = c.Close()
}

// wait waits as Delay says, and reports false once the test ends.
func (w *Proxy) wait() bool {
	w.mu.Lock()
	delay := w.delay
	w.mu.Unlock()
	if delay == 0 {
		return true
	}
	select {
	case <-time.After(delay):
		return true
	case <-w.end:
		return false
	}
}

// awaitConnected waits until the proxy is connected, and reports false once the test ends.
func (w *Proxy) awaitConnected() bool {
	w.mu.Lock()
	connected := w.connected
	w.mu.Unlock()
	select {
	case <-connected:
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
		w.track(in)
		w.work.Go(func() { w.connect(in) })
	}
}

// track registers a connection to be closed at the end of the test.
func (w *Proxy) track(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	if w.refuses {
		reset(c)
	}
	select {
	case <-w.end:
		_ = c.Close()
	default:
	}
}

func (w *Proxy) connect(in net.Conn) {
	defer func() { _ = in.Close() }()
	if !w.awaitConnected() {
		return
	}

	out, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	w.track(out)
	var both sync.WaitGroup
	both.Go(func() { w.copyData(out, in) })
	both.Go(func() { w.copyData(in, out) })
	both.Wait()
}

// copyData copies data, and the end of the connection, from one side to the other.
func (w *Proxy) copyData(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !w.awaitConnected() || !w.wait() {
			return
		}
		if _, writing := to.Write(buffer[:n]); writing != nil || err != nil {
			break
		}
	}

	_ = to.Close() // the side that closed needs no more data
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
