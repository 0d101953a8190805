package mysql

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
)

// maxPrefetch limits how much is read ahead while a receiver does not take a batch.
const maxPrefetch = 256 << 10

// prefetchConn is a connection that can be read ahead into memory, because only a read
// notices that it was closed. Read and prefetch must not overlap.
type prefetchConn struct {
	net.Conn
	buffered []byte
	err      error // returned after buffered
}

// Read implements net.Conn.
func (c *prefetchConn) Read(p []byte) (int, error) {
	if len(c.buffered) > 0 {
		n := copy(p, c.buffered)
		if c.buffered = c.buffered[n:]; len(c.buffered) == 0 {
			c.buffered = nil
		}
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

// prefetch reads ahead until stop is called or maxPrefetch is reached. The channel is
// closed if the connection ends. stop returns when nothing reads any more.
func (c *prefetchConn) prefetch() (ended <-chan struct{}, stop func()) {
	closed := make(chan struct{})
	var reading sync.WaitGroup
	var once sync.Once
	_ = c.SetReadDeadline(time.Time{}) // fails only on a closed connection
	reading.Go(func() {
		part := make([]byte, 32<<10)
		for len(c.buffered) < maxPrefetch {
			n, err := c.Conn.Read(part)
			c.buffered = append(c.buffered, part[:n]...)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return // stopped
			}
			if err != nil {
				c.err = err
				close(closed)
				return
			}
		}
	})

	return closed, func() {
		once.Do(func() {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // long past
			reading.Wait()
			_ = c.SetReadDeadline(time.Time{})
		})
	}
}

// watchShutdown keeps a session idle until stop is called. The channel is closed if the
// server ends the session, which is how its shutdown begins, or if the server no longer
// answers, because then the shutdown has already begun. A server that refuses the session
// is ignored.
func (s *Source) watchShutdown(ctx context.Context) (ended <-chan struct{}, stop func()) {
	closed := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		d := &dump{}
		stopHanging := context.AfterFunc(ctx, d.abort)
		defer stopHanging()
		c, err := s.openSession(ctx, d, s.server)
		if err != nil {
			if ctx.Err() == nil && !isRefusal(err) {
				close(closed)
			}
			return
		}
		defer func() { _ = c.Close() }() // the result does not depend on it
		closedByServer, stopReading := d.conn.prefetch()
		defer stopReading()

		select {
		case <-closedByServer:
			if ctx.Err() == nil {
				close(closed)
			}
		case <-ctx.Done():
		}
	})

	return closed, func() {
		cancel()
		listening.Wait()
	}
}

// openSession opens a session of the streaming role. It ends with d, which has no other
// use here.
func (s *Source) openSession(ctx context.Context, d *dump, sv *server) (*client.Conn, error) {
	return client.ConnectWithDialer(ctx, s.stream.Net, s.stream.Addr, s.stream.User, s.stream.Passwd, "", d.dialer(ctx), func(c *client.Conn) error {
		c.SetTLSConfig(s.encryption(sv))
		return nil
	})
}

// isRefusal reports whether a running server refused a session.
func isRefusal(err error) bool {
	var e *mysql.MyError
	return errors.As(err, &e) && e.Code != mysql.ER_SERVER_SHUTDOWN
}
