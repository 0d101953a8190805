package floor

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// mysqlDatabase is a MySQL or MariaDB database.
type mysqlDatabase struct {
	cfg   *Config
	table *mysqlTable
}

// mysqlTable builds the statements. They name the primary key for the same reason as in
// store/mysql: the server would scan a table that it considers small.
type mysqlTable struct {
	name   string
	layout store.Layout
}

func (t *mysqlTable) from() string {
	return mystore.Ident(t.name) + " AS o FORCE INDEX (PRIMARY)"
}

func (t *mysqlTable) idCondition() string {
	return " WHERE o." + mystore.Ident(t.layout.Columns.ID) + " IN "
}

func (t *mysqlTable) statusCondition(s store.Status) string {
	return "o." + mystore.Ident(t.layout.Columns.Status) + " = " + literal(&t.layout, s)
}

// setStatus returns an update up to the value of its time.
func (t *mysqlTable) setStatus(s store.Status) string {
	return "UPDATE " + t.from() + " SET " + t.statusCondition(s) + ", o." + mystore.Ident(t.layout.Columns.Claimed) + " = "
}

// mysqlSession is a session of MySQL or MariaDB. It sends all statements of a transaction in
// one packet, and so in one round trip.
type mysqlSession struct {
	conn          driver.Conn
	netConn       net.Conn
	table         *mysqlTable
	fill          func(s *mysqlSession, rows []row) // writes the statements to text
	countedResult int                               // index of the statement whose affected rows count
	text          []byte
}

// openClaims opens the session that claims rows. A claim first locks its rows, because that
// waits for open inserts. An update alone would skip those rows, and they would look
// deleted.
func (d *mysqlDatabase) openClaims(ctx context.Context) (claimer, error) {
	t := d.table
	lock, update := "SELECT COUNT(*) FROM "+t.from()+t.idCondition(), t.setStatus(store.Processing)
	only := " AND " + t.statusCondition(store.Pending)
	return d.openSession(ctx, "0", 1, func(s *mysqlSession, rows []row) {
		s.add(lock)
		from := len(s.text)
		s.addIDs(rows)
		to := len(s.text)
		s.add(" FOR UPDATE; " + update)
		s.addTime()
		s.add(t.idCondition())
		s.text = append(s.text, s.text[from:to]...)
		s.add(only + "; COMMIT")
	})
}

// openCompletions opens the session that completes rows.
func (d *mysqlDatabase) openCompletions(ctx context.Context, pending bool) (session, error) {
	t := d.table
	only := ""
	if pending {
		only = " AND " + t.statusCondition(store.Pending)
	}
	return d.openSession(ctx, "1", 0, func(s *mysqlSession, rows []row) {
		if t.layout.DeleteDelivered {
			s.add("DELETE o FROM " + t.from())
		} else {
			s.add(t.setStatus(store.Completed))
			s.addTime()
		}
		s.add(t.idCondition())
		s.addIDs(rows)
		s.add(only)
	})
}

// openSession opens a session with its own value of autocommit.
func (d *mysqlDatabase) openSession(ctx context.Context, autocommit string, counts int, fill func(*mysqlSession, []row)) (*mysqlSession, error) {
	cfg, err := mystore.ParseURL(d.cfg.URL, "sluicebox bench floor")
	if err != nil {
		return nil, err
	}

	s := &mysqlSession{table: d.table, fill: fill, countedResult: counts}
	cfg.MultiStatements = true
	cfg.Params = map[string]string{"autocommit": autocommit, "sql_mode": "'STRICT_ALL_TABLES'", "time_zone": "'+00:00'"}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
		s.netConn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return s.netConn, err
	}

	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, err)
	}
	if s.conn, err = connector.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Addr, mystore.Explain(err))
	}
	if err := s.prepareSession(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("prepare session: %w", err)
	}
	return s, nil
}

// prepareSession sets the session variables. By default, MariaDB converts a long IN list to
// a temporary table, and may then scan the other table.
func (s *mysqlSession) prepareSession(ctx context.Context) error {
	statements := []string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "/*M! SET in_predicate_conversion_threshold = 0 */"}
	for _, sql := range statements {
		if _, err := s.exec(ctx, sql); err != nil && !isEmptyQuery(err) {
			return err
		}
	}
	return nil
}

// isEmptyQuery reports whether err is MySQL's answer to a statement for MariaDB only.
func isEmptyQuery(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && e.Number == 1065 // ER_EMPTY_QUERY
}

func (s *mysqlSession) close() {
	_ = s.netConn.SetDeadline(time.Now().Add(store.CloseTimeout))
	_ = s.conn.Close() // its error does not matter
}

// bind implements session.
func (s *mysqlSession) bind(ctx context.Context) (unbind func()) {
	stop := context.AfterFunc(ctx, func() { _ = s.netConn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

func (s *mysqlSession) exec(ctx context.Context, sql string) (driver.Result, error) {
	return s.conn.(driver.ExecerContext).ExecContext(ctx, sql, nil)
}

// write implements session.
func (s *mysqlSession) write(rows []row) (int, error) {
	s.text = s.text[:0]
	s.fill(s, rows)
	result, err := s.exec(context.Background(), string(s.text))
	if err != nil {
		return 0, err
	}
	all := result.(mysql.Result).AllRowsAffected()
	return int(all[s.countedResult]), nil
}

// claimedOf implements claimer.
func (s *mysqlSession) claimedOf(rows []row) (map[string]bool, error) {
	t := s.table
	s.text = s.text[:0]
	s.add("SELECT " + mystore.Ident(t.layout.Columns.ID) + " FROM " + t.from() + t.idCondition())
	s.addIDs(rows)
	s.add(" AND " + t.statusCondition(store.Processing))
	found, err := s.conn.(driver.QueryerContext).QueryContext(context.Background(), string(s.text), nil)
	if err != nil {
		return nil, err
	}

	ids := make(map[string]bool, len(rows))
	values := make([]driver.Value, 1)
	for err = found.Next(values); err == nil; err = found.Next(values) {
		ids[string(values[0].([]byte))] = true
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := found.Close(); err != nil {
		return nil, err
	}

	_, err = s.exec(context.Background(), "COMMIT") // otherwise the next read would use the same snapshot
	return ids, err
}

func (s *mysqlSession) add(text string) { s.text = append(s.text, text...) }

func (s *mysqlSession) addTime() {
	s.text = time.Now().UTC().AppendFormat(s.text, "'2006-01-02 15:04:05.000000'")
}

// addIDs adds a list of the rows' ids. In the session's sql_mode a backslash escapes, and in
// UTF-8 no byte of another character equals a backslash or a quote.
func (s *mysqlSession) addIDs(rows []row) {
	sep := byte('(')
	for i := range rows {
		s.text = append(s.text, sep, '\'')
		for _, c := range rows[i].id {
			if c == '\'' || c == '\\' {
				s.text = append(s.text, '\\')
			}
			s.text = append(s.text, c)
		}
		s.text = append(s.text, '\'')
		sep = ','
	}
	s.text = append(s.text, ')')
}
