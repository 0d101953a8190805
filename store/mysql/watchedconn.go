package mysql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// keepAlive detects a silent host: TCP probes start after 5 s of silence, which is later
// than the lock expires, and the connection fails after 14 s.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 3 * time.Second, Count: 3}
}

// watchedConn is the network connection of a session.
type watchedConn struct {
	net.Conn

	mu       sync.Mutex
	buffered []byte // bytes received while watching
}

// dialWatched returns a dial function that stores its connection in w.
func dialWatched(w *watchedConn) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialer := net.Dialer{KeepAliveConfig: keepAlive()}
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		w.Conn = conn
		return w, nil
	}
}

// Read implements net.Conn.
func (w *watchedConn) Read(p []byte) (int, error) {
	w.mu.Lock()
	if len(w.buffered) > 0 {
		n := copy(p, w.buffered)
		w.buffered = w.buffered[n:]
		w.mu.Unlock()
		return n, nil
	}
	w.mu.Unlock()
	return w.Conn.Read(p)
}

// watch waits until the context ends, while no statement runs, and then returns nil. An
// idle session receives nothing but the server's notice that it ends, so any byte means
// that the session is over.
func (w *watchedConn) watch(ctx context.Context) error {
	unblocked := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.SetReadDeadline(time.Unix(1, 0)) // long past; fails only on a closed connection
		close(unblocked)
	})

	var b [1]byte
	n, err := w.Conn.Read(b[:])
	if !stop() {
		<-unblocked
	}

	if n > 0 {
		w.mu.Lock()
		w.buffered = append(w.buffered, b[:n]...)
		w.mu.Unlock()
		return errors.New("server ended the session")
	}

	if errors.Is(err, os.ErrDeadlineExceeded) {
		return w.SetReadDeadline(time.Time{})
	}
	return fmt.Errorf("server ended the session: %w", err)
}
