package floor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"

	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// The server sends a heartbeat each second. The connection counts as lost after ten seconds
// of silence.
const (
	heartbeatInterval = time.Second
	readTimeout       = 10 * time.Second
)

// parseGTIDs parses a GTID set of either server. Only MySQL's format has a colon.
func parseGTIDs(text string) (gomysql.GTIDSet, error) {
	if strings.Contains(text, ":") {
		return gomysql.ParseMysqlGTIDSet(text)
	}
	return gomysql.ParseMariadbGTIDSet(text)
}

// binlogStream reads the binlog. It is the syncer's event handler.
type binlogStream struct {
	syncer   *replication.BinlogSyncer
	streamer *replication.BinlogStreamer
	dec      rowsDecoder
	out      chunker

	ctx     context.Context // of run
	started chan struct{}   // closed by run
	closed  chan struct{}   // closed by closeConn
	once    sync.Once
	conn    atomic.Pointer[net.Conn]
}

func (d *mysqlDatabase) openStream(ctx context.Context, rows *ledger) (stream, error) {
	cfg, err := mystore.ParseURL(d.cfg.URL, "sluicebox bench floor stream")
	if err != nil {
		return nil, err
	}

	s := &binlogStream{started: make(chan struct{}), closed: make(chan struct{}), out: chunker{ledger: rows}}
	if s.dec, err = d.findColumns(ctx, cfg); err != nil {
		return nil, err
	}

	from, err := parseGTIDs(d.cfg.From)
	if err != nil {
		return nil, err
	}

	host, port, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("floor needs a TCP connection: %w", err)
	}

	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}

	flavor := gomysql.MySQLFlavor
	if _, maria := from.(*gomysql.MariadbGTIDSet); maria {
		flavor = gomysql.MariaDBFlavor
	}

	s.syncer = replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: rand.Uint32() | 1<<31, Flavor: flavor, Host: host, Port: uint16(number),
		User: cfg.User, Password: cfg.Passwd, TLSConfig: cfg.TLS, Localhost: "sluicebox bench floor",
		RawModeEnabled: true, SynchronousEventHandler: s, EventCacheCount: 1,
		DisableRetrySync: true, DiscardGTIDSet: true, FillZeroLogPos: flavor == gomysql.MariaDBFlavor,
		HeartbeatPeriod: heartbeatInterval, ReadTimeout: readTimeout,
		Logger: slog.New(slog.DiscardHandler), // it would log the configuration
		Dialer: s.dial,
	})
	if s.streamer, err = s.syncer.StartSyncGTID(from); err != nil {
		s.close()
		return nil, fmt.Errorf("start stream: %w", mystore.Explain(err))
	}
	return s, nil
}

// findColumns reads the indexes of the table's columns. It removes TLS from cfg if
// tls=preferred connected without.
func (d *mysqlDatabase) findColumns(ctx context.Context, cfg *mysql.Config) (dec rowsDecoder, err error) {
	const query = `SELECT
  COALESCE(MAX(IF(column_name = ?, ordinal_position, 0)), 0), COALESCE(MAX(IF(column_name = ?, ordinal_position, 0)), 0)
FROM information_schema.columns WHERE table_schema = ? AND table_name = ?`
	dec.schema, dec.table = cfg.DBName, d.cfg.Table
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return dec, err
	}

	pool := sql.OpenDB(connector)
	defer func() { _ = pool.Close() }() // its error does not matter
	columns := &d.table.layout.Columns
	err = pool.QueryRowContext(ctx, query, columns.ID, columns.Payload, dec.schema, dec.table).Scan(&dec.idAt, &dec.payloadAt)
	if err != nil {
		return dec, fmt.Errorf("look up table %s: %w", dec.table, mystore.Explain(err))
	}
	if cfg.AllowFallbackToPlaintext { // the stream falls back as the pool did
		var name, cipher string
		if err := pool.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher); err != nil {
			return dec, fmt.Errorf("look for TLS: %w", mystore.Explain(err))
		}
		if cipher == "" {
			cfg.TLS = nil
		}
	}
	if dec.idAt == 0 || dec.payloadAt == 0 {
		return dec, fmt.Errorf("no table %s in database %s, or it has no columns %s and %s", dec.table, dec.schema, columns.ID, columns.Payload)
	}

	dec.idAt--
	dec.payloadAt--
	return dec, nil
}

// dial connects for the syncer, once, because the syncer would connect again to end its
// session.
func (s *binlogStream) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.conn.Load() != nil {
		return nil, errors.New("stream closed")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		s.conn.Store(&conn)
	}
	return conn, err
}

var _ client.Dialer = (*binlogStream)(nil).dial

func (s *binlogStream) closeConn() {
	s.once.Do(func() { close(s.closed) })
	if conn := s.conn.Load(); conn != nil {
		_ = (*conn).Close()
	}
}

// close ends the stream and waits for the syncer's goroutine.
func (s *binlogStream) close() {
	s.closeConn()
	s.syncer.Close()
}

// run implements stream. The binlog contains only committed changes.
func (s *binlogStream) run(ctx context.Context, maxRows int, take func([]row) error) error {
	s.ctx, s.out.maxRows, s.out.emit = ctx, maxRows, take
	close(s.started)
	defer context.AfterFunc(ctx, s.closeConn)()
	_, err := s.streamer.GetEvent(context.Background()) // it returns when the connection ends
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("read binlog: %w", err)
}

// HandleEvent implements replication.EventHandler. Its error ends the stream.
func (s *binlogStream) HandleEvent(e *replication.BinlogEvent) error {
	select {
	case <-s.started:
	case <-s.closed:
		return errors.New("stream closed")
	}
	return s.event(e.Header, e.RawData)
}

func (s *binlogStream) event(head *replication.EventHeader, raw []byte) error {
	switch head.EventType {
	case replication.FORMAT_DESCRIPTION_EVENT:
		s.dec.describe(raw)
	case replication.TABLE_MAP_EVENT:
		return s.dec.tableMap(raw)
	case replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2:
		return s.dec.inserts(head.EventType, raw, func(r row) error {
			if s.out.txn == nil {
				s.out.begin()
			}
			return s.out.add(s.ctx, r)
		})
	case replication.XID_EVENT:
		if s.out.txn != nil {
			return s.out.end(s.ctx, uint64(head.LogPos))
		}
	case replication.TRANSACTION_PAYLOAD_EVENT, replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		return errors.New("binlog is compressed, which the floor does not support")
	}
	return nil
}
