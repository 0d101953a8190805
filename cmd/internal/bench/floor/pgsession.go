package floor

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// table makes the statements. Conditions on the status are IS TRUE, and plans that
// read the whole table are ruled out, for the reasons that store/postgres has: a
// statement is planned once, while the table may be empty.
type table struct {
	name   string
	layout store.Layout
}

func (t *table) id() string { return pgstore.Ident(t.layout.Columns.ID) }

func (t *table) value(s store.Status) string { return literal(&t.layout, s) }

func (t *table) is(s store.Status) string {
	return "(" + pgstore.Ident(t.layout.Columns.Status) + " = " + t.value(s) + ") IS TRUE"
}

func (t *table) set(s store.Status) string {
	c := &t.layout.Columns
	return "UPDATE " + t.name + " SET " + pgstore.Ident(c.Status) + " = " + t.value(s) + ", " + pgstore.Ident(c.Claimed) + " = $2::timestamptz"
}

// claim changes the rows that are pending. What a statement with RETURNING costs
// more is seen; the number of the rows says as much.
func (t *table) claim(which string) string {
	return t.set(store.Processing) + " WHERE " + t.id() + which + " AND " + t.is(store.Pending)
}

func (t *table) complete(which string) string {
	if t.layout.DeleteDelivered {
		return "DELETE FROM " + t.name + " WHERE " + t.id() + which
	}
	return t.set(store.Completed) + " WHERE " + t.id() + which
}

// Names of prepared statements.
const (
	one     = "one"  // writes one row
	many    = "many" // writes an array of rows
	claimed = "claimed"
)

// pgSession is a session of PostgreSQL.
type pgSession struct {
	conn  *pgconn.PgConn
	table *table
	timed bool // the statements have a time

	ids   []byte // memory of the parameters
	bound pgproto3.Bind
}

// postgres is a database of PostgreSQL.
type postgres struct {
	cfg   *Config
	table *table
}

func (p *postgres) openStream(ctx context.Context, rows *ledger) (stream, error) {
	oid, err := p.find(ctx)
	if err != nil {
		return nil, err
	}
	columns := &p.table.layout.Columns
	dec := &decoder{table: oid, name: p.cfg.Table, id: columns.ID, payload: columns.Payload}
	return openSlotStream(ctx, p.cfg, dec, rows)
}

func (p *postgres) openClaims(ctx context.Context) (claimer, error) {
	t := p.table
	return openSession(ctx, p.cfg.URL, t, true, map[string]string{
		one: t.claim(" = $1"), many: t.claim(" = ANY ($1)"),
		claimed: "SELECT " + t.id() + " FROM " + t.name + " WHERE " + t.id() + " = ANY ($1) AND " + t.is(store.Processing),
	})
}

func (p *postgres) openCompletions(ctx context.Context) (session, error) {
	t := p.table
	return openSession(ctx, p.cfg.URL, t, !t.layout.DeleteDelivered, map[string]string{
		one: t.complete(" = $1"), many: t.complete(" = ANY ($1)"),
	})
}

func openSession(ctx context.Context, url string, t *table, timed bool, statements map[string]string) (*pgSession, error) {
	config, err := pgstore.ParseURL(url, "sluicebox bench floor")
	if err != nil {
		return nil, err
	}
	for key, value := range map[string]string{
		"client_encoding": "UTF8", "enable_hashjoin": "off", "enable_mergejoin": "off", "enable_seqscan": "off",
		"jit": "off", "plan_cache_mode": "force_generic_plan", "synchronous_commit": "off",
	} {
		config.RuntimeParams[key] = value
	}
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, pgstore.Explain(err))
	}
	for name, sql := range statements {
		if _, err := conn.Prepare(ctx, name, sql, nil); err != nil {
			hangUp(conn)
			return nil, fmt.Errorf("prepare %q: %w", sql, pgstore.Explain(err))
		}
	}
	s := &pgSession{conn: conn, table: t, timed: timed}
	s.bound = pgproto3.Bind{Parameters: make([][]byte, 1), ParameterFormatCodes: make([]int16, 1)}
	if timed {
		s.bound.Parameters = append(s.bound.Parameters, make([]byte, 8))
		s.bound.ParameterFormatCodes = append(s.bound.ParameterFormatCodes, 1) // binary
	}
	return s, nil
}

func (s *pgSession) close() { hangUp(s.conn) }

// bind implements session.
func (s *pgSession) bind(ctx context.Context) (unbind func()) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Conn().SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// findTable is one row if there is such a table. Version 18 streams nothing where
// the publication is missing, and says so in its log only.
const findTable = `SELECT $1::regclass::oid, EXISTS (SELECT FROM pg_publication_tables
	WHERE pubname = $2 AND format('%I.%I', schemaname, tablename)::regclass = $1::regclass)`

// find returns the table's OID.
func (p *postgres) find(ctx context.Context) (oid uint32, err error) {
	s, err := openSession(ctx, p.cfg.URL, p.table, false, nil)
	if err != nil {
		return 0, err
	}
	defer s.close()
	published := false
	result := s.conn.ExecParams(ctx, findTable, [][]byte{[]byte(p.cfg.Table), []byte(p.cfg.Publication)}, nil, nil, []int16{1})
	for result.NextRow() {
		oid = binary.BigEndian.Uint32(result.Values()[0])
		published = result.Values()[1][0] == 1
	}
	if _, err := result.Close(); err != nil {
		return 0, fmt.Errorf("look for table %s: %w", p.cfg.Table, pgstore.Explain(err))
	}
	if !published {
		return 0, fmt.Errorf("publication %s is not there, or does not publish %s", p.cfg.Publication, p.cfg.Table)
	}
	return oid, nil
}

// write implements session.
func (s *pgSession) write(rows []row) (int, error) {
	statement := many
	s.bound.Parameters[0] = rows[0].id
	if len(rows) > 1 {
		s.ids = appendArray(s.ids[:0], rows)
		s.bound.Parameters[0] = s.ids
	} else {
		statement = one
	}
	if s.timed {
		binary.BigEndian.PutUint64(s.bound.Parameters[1], uint64(time.Now().UnixMicro()-epoch))
	}
	s.bound.PreparedStatement = statement
	f := s.conn.Frontend()
	f.SendBind(&s.bound)
	f.SendExecute(&pgproto3.Execute{})
	f.SendSync(&pgproto3.Sync{})
	if err := f.Flush(); err != nil {
		return 0, err
	}
	return s.answer(f)
}

// epoch is the zero of the server's times, 2000-01-01 UTC, in microseconds of
// Unix time.
const epoch = 946684800 * 1_000_000

func (s *pgSession) answer(f *pgproto3.Frontend) (wrote int, err error) {
	for {
		msg, received := f.Receive()
		if received != nil {
			return 0, received
		}
		switch msg := msg.(type) {
		case *pgproto3.CommandComplete:
			wrote = int(pgconn.NewCommandTag(string(msg.CommandTag)).RowsAffected())
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.ReadyForQuery:
			return wrote, err
		}
	}
}

// claimedOf implements claimer.
func (s *pgSession) claimedOf(rows []row) (map[string]bool, error) {
	ids := make(map[string]bool, len(rows))
	result := s.conn.ExecPrepared(context.Background(), claimed, [][]byte{appendArray(nil, rows)}, nil, nil)
	for result.NextRow() {
		ids[string(result.Values()[0])] = true
	}
	_, err := result.Close()
	return ids, err
}

// appendArray appends the ids as the text of an array of any type.
func appendArray(to []byte, rows []row) []byte {
	sep := byte('{')
	for i := range rows {
		to = append(to, sep, '"')
		for _, c := range rows[i].id {
			if c == '"' || c == '\\' {
				to = append(to, '\\')
			}
			to = append(to, c)
		}
		to = append(to, '"')
		sep = ','
	}
	return append(to, '}')
}
