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

// mostAhead bounds what is read of a connection while a receiver lets a batch
// wait.
const mostAhead = 256 << 10

// aheadConn is a connection that can be read ahead, into memory: that is how its
// end is noticed while nobody takes what comes. Read and ahead must not overlap.
type aheadConn struct {
	net.Conn
	early []byte
	err   error // behind early
}

// Read implements net.Conn.
func (c *aheadConn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		if c.early = c.early[n:]; len(c.early) == 0 {
			c.early = nil
		}
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

// ahead reads on until stop is called or enough was read. The channel is closed
// if the connection ends. stop returns when nothing is read any more.
func (c *aheadConn) ahead() (ended <-chan struct{}, stop func()) {
	lost := make(chan struct{})
	var reading sync.WaitGroup
	var once sync.Once
	_ = c.SetReadDeadline(time.Time{}) // it fails only on a closed connection
	reading.Go(func() {
		part := make([]byte, 32<<10)
		for len(c.early) < mostAhead {
			n, err := c.Conn.Read(part)
			c.early = append(c.early, part[:n]...)
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

// listen opens a session that does nothing until stop is called. The channel is
// closed if the server ends it, as it does when it begins to shut down, or if it no
// longer answers: the shutdown has begun already. That it refuses the session means
// nothing.
func (s *Source) listen(ctx context.Context) (ended <-chan struct{}, stop func()) {
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		d := &dump{}
		stopHanging := context.AfterFunc(ctx, d.hangUp)
		defer stopHanging()
		c, err := s.session(ctx, d, s.server)
		if err != nil {
			if ctx.Err() == nil && !answered(err) {
				close(over)
			}
			return
		}
		defer func() { _ = c.Close() }() // nothing hangs on the goodbye
		lost, stopReading := d.conn.ahead()
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

// session opens one of the role of the stream. It ends with the dump, which is otherwise
// unused.
func (s *Source) session(ctx context.Context, d *dump, sv *server) (*client.Conn, error) {
	return client.ConnectWithDialer(ctx, s.stream.Net, s.stream.Addr, s.stream.User, s.stream.Passwd, "", d.dialer(ctx), func(c *client.Conn) error {
		c.SetTLSConfig(s.encryption(sv))
		return nil
	})
}

// answered reports whether a server that lives has refused a session.
func answered(err error) bool {
	var e *mysql.MyError
	return errors.As(err, &e) && e.Code != mysql.ER_SERVER_SHUTDOWN
}
