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

// maxPrefetch bounds what is read of a connection while a receiver lets a batch
// wait.
const maxPrefetch = 256 << 10

// prefetchConn is a connection that can be read ahead, into memory: that is how its
// end is noticed while nobody takes what comes. Read and ahead must not overlap.
type prefetchConn struct {
	net.Conn
	buffered []byte
	err      error // behind early
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

// prefetch reads on until stop is called or enough was read. The channel is closed
// if the connection ends. stop returns when nothing is read any more.
func (c *prefetchConn) prefetch() (ended <-chan struct{}, stop func()) {
	lost := make(chan struct{})
	var reading sync.WaitGroup
	var once sync.Once
	_ = c.SetReadDeadline(time.Time{}) // it fails only on a closed connection
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
				close(lost)
				return
			}
		}
	})
	return lost, func() {
		once.Do(func() {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // long past
			reading.Wait()
			_ = c.SetReadDeadline(time.Time{})
		})
	}
}

// watchShutdown opens a session that does nothing until stop is called. The channel is
// closed if the server ends it, as it does when it begins to shut down, or if it no
// longer answers: the shutdown has begun already. That it refuses the session means
// nothing.
func (s *Source) watchShutdown(ctx context.Context) (ended <-chan struct{}, stop func()) {
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		d := &dump{}
		stopHanging := context.AfterFunc(ctx, d.abort)
		defer stopHanging()
		c, err := s.openSession(ctx, d, s.server)
		if err != nil {
			if ctx.Err() == nil && !isRefusal(err) {
				close(over)
			}
			return
		}
		defer func() { _ = c.Close() }() // nothing hangs on the goodbye
		lost, stopReading := d.conn.prefetch()
		defer stopReading()
		select {
		case <-lost:
			if ctx.Err() == nil {
				close(over)
			}
		case <-ctx.Done():
		}
	})
	return over, func() {
		cancel()
		listening.Wait()
	}
}

// openSession opens one of the role of the stream. It ends with the dump, which is otherwise
// unused.
func (s *Source) openSession(ctx context.Context, d *dump, sv *server) (*client.Conn, error) {
	return client.ConnectWithDialer(ctx, s.stream.Net, s.stream.Addr, s.stream.User, s.stream.Passwd, "", d.dialer(ctx), func(c *client.Conn) error {
		c.SetTLSConfig(s.encryption(sv))
		return nil
	})
}

// isRefusal reports whether a server that lives has refused a session.
func isRefusal(err error) bool {
	var e *mysql.MyError
	return errors.As(err, &e) && e.Code != mysql.ER_SERVER_SHUTDOWN
}
