package mysql

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

const (
	// HeartbeatPeriod is how often an idle server sends a heartbeat.
	HeartbeatPeriod = 2 * time.Second
	// readTimeout is how long the server may be silent.
	readTimeout = 10 * time.Second
	// writeTimeout replaces the server's net_write_timeout: how long it may wait for this
	// side to read. It is longer than a pause that keeps the connection.
	writeTimeout = 6 * pauseTimeout
)

// dump is one connection over which the server sends its binlog. The syncer's goroutine
// passes the events to a handler without a buffer.
type dump struct {
	syncer   *replication.BinlogSyncer
	streamer *replication.BinlogStreamer

	loggedIn bool // the role has logged in

	mu     sync.Mutex
	conn   *prefetchConn
	closed bool
}

var errDumpClosed = errors.New("connection closed")

// openDump requests the server's binlog from a position. The caller closes the dump.
func (s *Source) openDump(ctx context.Context, d *dump, sv *server, serverID uint32, from binlogPosition, handler replication.EventHandler) error {
	host, port, err := net.SplitHostPort(s.stream.Addr)
	if s.stream.Net == "unix" {
		host, port, err = s.stream.Addr, "0", nil
	}
	if err != nil {
		return err
	}

	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}

	password := s.stream.Passwd
	if of := s.cfg.Password; of != nil {
		if password, err = of.Password(ctx); err != nil {
			return err
		}
	}
	flavor := "mysql"
	if sv.flavour == mariaDB {
		flavor = "mariadb"
	}

	d.syncer = replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: serverID, Flavor: flavor, Host: host, Port: uint16(number),
		User: s.stream.User, Password: password, TLSConfig: s.encryption(sv),
		Localhost: "sluicebox " + s.cfg.Name,
		// Decode headers only, so that data of other tables costs nothing and cannot end
		// the stream.
		RawModeEnabled:          true,
		SynchronousEventHandler: handler,
		DisableRetrySync:        true, // a retry would repeat whole transactions
		DiscardGTIDSet:          true,
		EventCacheCount:         1,
		HeartbeatPeriod:         HeartbeatPeriod,
		ReadTimeout:             readTimeout,
		VerifyChecksum:          true,
		FillZeroLogPos:          sv.flavour == mariaDB,
		Logger:                  slog.New(slog.DiscardHandler), // it would log the configuration
		Dialer:                  d.dialer(ctx),
		Option: func(c *client.Conn) error {
			d.loggedIn = true
			if err := prepareSession(c, sv, from.set); err != nil {
				return err
			}
			return s.checkFile(ctx, sv, from)
		},
	})

	stop := context.AfterFunc(ctx, d.abort)
	defer stop()
	if d.streamer, err = d.syncer.StartSyncGTID(from.set.Clone()); err != nil {
		d.close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.explainDump(sv, d, fmt.Errorf("open stream on %s: %w", s.stream.Addr, err))
	}

	return nil
}

// encryption returns the TLS settings of the URL; nil for none.
func (s *Source) encryption(sv *server) *tls.Config {
	if s.stream.AllowFallbackToPlaintext && !sv.tls {
		return nil
	}
	return s.stream.TLS
}

// dialer connects for the syncer and keeps the connection, so that abort works whatever
// the syncer waits for. It refuses the second connection with which the syncer would kill
// its session, because the server notices a closed connection itself.
func (d *dump) dialer(ctx context.Context) client.Dialer {
	return func(_ context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		if d.isClosed() {
			return nil, errDumpClosed
		}

		var plain net.Dialer
		conn, err := plain.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}

		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closed {
			_ = conn.Close()
			return nil, errDumpClosed
		}

		d.conn = &prefetchConn{Conn: conn}
		return d.conn, nil
	}
}

func (d *dump) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// abort closes the connection, which ends the syncer's goroutine.
func (d *dump) abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.closed = true
	if d.conn != nil {
		_ = d.conn.Close()
	}
}

// wait returns the reason why the dump ended; the context's error if the context ended
// it.
func (d *dump) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, d.abort)
	defer stop()
	_, err := d.streamer.GetEvent(context.Background()) // it ends with the connection
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("read stream: %w", err) // the library's error prints its stack
}

// close ends the dump and waits for the syncer's goroutine.
func (d *dump) close() {
	d.abort()
	d.syncer.Close()
}

// prepareSession prepares the session of a dump. It verifies that the server is the one
// that Open saw and has everything that was read.
func prepareSession(c *client.Conn, sv *server, from mysql.GTIDSet) error {
	seconds := int(writeTimeout / time.Second)
	if _, err := c.Execute(fmt.Sprintf("SET SESSION net_write_timeout = %d", seconds)); err != nil {
		return err
	}

	answer, err := c.Execute("SELECT " + sv.flavour.identitySQL())
	if err != nil {
		return err
	}

	now, err := answer.GetString(0, 0)
	if err != nil {
		return err
	}

	if was := sv.identity; now != was {
		return logReplacedErrorf("server is %s, was %s", now, was)
	}
	return checkGTIDsExecuted(c, sv, from)
}

// checkGTIDsExecuted verifies that the server has executed the transactions that were
// read, because a restored server may assign the same GTIDs to others. MariaDB itself
// refuses such a dump.
func checkGTIDsExecuted(c *client.Conn, sv *server, from mysql.GTIDSet) error {
	if sv.flavour == mariaDB || from.IsEmpty() {
		return nil
	}

	// A GTID set in text contains no quotes.
	answer, err := c.Execute("SELECT GTID_SUBTRACT('" + from.String() + "', @@GLOBAL.gtid_executed)")
	if err != nil {
		return err
	}

	missing, err := answer.GetString(0, 0)
	if err != nil {
		return err
	}

	if missing != "" {
		return logReplacedErrorf("server has not executed %s, which was read from it before: server was restored", missing)
	}
	return nil
}

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
