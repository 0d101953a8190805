package mysql

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/replication"
)

const (
	// HeartbeatPeriod is how often something comes from an idle server.
	HeartbeatPeriod = 2 * time.Second
	// readTimeout is how long it may say nothing.
	readTimeout = 10 * time.Second
	// writeTimeout is how long the server may wait for this side to read, in
	// place of its net_write_timeout: longer than a pause that keeps the
	// connection.
	writeTimeout = 6 * pauseTimeout
)

// dump is one connection that the server sends its binlog over. The events go to
// a handler, on the syncer's goroutine: nothing is buffered on the way.
type dump struct {
	syncer   *replication.BinlogSyncer
	streamer *replication.BinlogStreamer

	loggedIn bool // the server let the role log in

	mu     sync.Mutex
	conn   *prefetchConn
	closed bool
}

var errDumpClosed = errors.New("the connection is hung up")

// openDump asks the server for its binlog behind a place. The caller closes the
// dump.
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
	flavor := "mysql"
	if sv.flavour == mariaDB {
		flavor = "mariadb"
	}
	d.syncer = replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: serverID, Flavor: flavor, Host: host, Port: uint16(number),
		User: s.stream.User, Password: s.stream.Passwd, TLSConfig: s.encryption(sv),
		Localhost: "sluicebox " + s.cfg.Name,
		// Only headers are decoded: what other tables hold must neither cost
		// anything nor be able to end the stream.
		RawModeEnabled:          true,
		SynchronousEventHandler: handler,
		DisableRetrySync:        true, // it would begin with whole transactions again
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
	if d.streamer, err = d.syncer.StartSyncGTID(from.set.forDump()); err != nil {
		d.close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.explainDump(sv, d, fmt.Errorf("open a stream on %s: %w", s.stream.Addr, err))
	}
	return nil
}

// encryption is what the URL says of TLS; nil is none.
func (s *Source) encryption(sv *server) *tls.Config {
	if s.stream.AllowFallbackToPlaintext && !sv.tls {
		return nil
	}
	return s.stream.TLS
}

// dialer connects for the syncer, and notes the connection, so that it can be
// given up whatever the syncer waits for. The syncer would connect again in order
// to kill its session: the server notices by itself that nobody reads.
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

// abort ends the connection. The syncer's goroutine then ends too.
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

// wait returns why the dump ended, the context's error if that is why.
func (d *dump) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, d.abort)
	defer stop()
	_, err := d.streamer.GetEvent(context.Background()) // it ends with the connection
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the stream: %w", err) // the library's own prints its stack
}

// close ends the dump and waits for the syncer's goroutine.
func (d *dump) close() {
	d.abort()
	d.syncer.Close()
}

// prepareSession prepares the session of a dump, and makes sure that the server is the one
// that Open saw and goes on from what was read.
func prepareSession(c *client.Conn, sv *server, from gtidSet) error {
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
		return logReplacedErrorf("the server is %s, it was %s", now, was)
	}
	return checkGTIDsExecuted(c, sv, from)
}

// checkGTIDsExecuted makes sure that the server has executed what was read: one that was
// restored may give the same names to other transactions. MariaDB refuses such a
// dump by itself.
func checkGTIDsExecuted(c *client.Conn, sv *server, from gtidSet) error {
	if sv.flavour == mariaDB || isEmpty(from) {
		return nil
	}
	// A set in text holds nothing that would end the quotes.
	answer, err := c.Execute("SELECT GTID_SUBTRACT('" + from.String() + "', @@GLOBAL.gtid_executed)")
	if err != nil {
		return err
	}
	missing, err := answer.GetString(0, 0)
	if err != nil {
		return err
	}
	if missing != "" {
		return logReplacedErrorf("the server has not executed %s, which was read from it: it was restored", missing)
	}
	return nil
}
