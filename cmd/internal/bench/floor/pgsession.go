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

// pgTable builds the statements. Conditions on the status use IS TRUE, and plans that scan
// the table are disabled, for the same reasons as in store/postgres: a statement is planned
// once, possibly while the table is empty.
type pgTable struct {
	name   string
	layout store.Layout
}

func (t *pgTable) id() string { return pgstore.Ident(t.layout.Columns.ID) }

func (t *pgTable) value(s store.Status) string { return literal(&t.layout, s) }

func (t *pgTable) statusCondition(s store.Status) string {
	return "(" + pgstore.Ident(t.layout.Columns.Status) + " = " + t.value(s) + ") IS TRUE"
}

func (t *pgTable) setStatus(s store.Status) string {
	c := &t.layout.Columns
	return "UPDATE " + t.name + " SET " + pgstore.Ident(c.Status) + " = " + t.value(s) + ", " + pgstore.Ident(c.Claimed) + " = $2::timestamptz"
}

// claim updates the pending rows. It has no RETURNING, because that costs measurably more
// and the number of rows is sufficient.
func (t *pgTable) claim(which string) string {
	return t.setStatus(store.Processing) + " WHERE " + t.id() + which + " AND " + t.statusCondition(store.Pending)
}

func (t *pgTable) complete(which string) string {
	if t.layout.DeleteDelivered {
		return "DELETE FROM " + t.name + " WHERE " + t.id() + which
	}
	return t.setStatus(store.Completed) + " WHERE " + t.id() + which
}

// completePending completes pending rows only, so that each counts once.
func (t *pgTable) completePending(which string) string {
	return t.complete(which) + " AND " + t.statusCondition(store.Pending)
}

// Names of prepared statements.
const (
	stmtOne     = "one"  // writes one row
	stmtMany    = "many" // writes an array of rows
	stmtClaimed = "claimed"
)

// pgSession is a PostgreSQL session.
type pgSession struct {
	conn  *pgconn.PgConn
	table *pgTable
	timed bool // the statements take a time

	ids   []byte // reused buffers of the parameters
	bound pgproto3.Bind
}

// pgDatabase is a PostgreSQL database.
type pgDatabase struct {
	cfg   *Config
	table *pgTable
}

func (p *pgDatabase) openStream(ctx context.Context, rows *ledger) (stream, error) {
	oid, err := p.findTableOID(ctx)
	if err != nil {
		return nil, err
	}
	columns := &p.table.layout.Columns
	dec := &pgDecoder{table: oid, name: p.cfg.Table, id: columns.ID, payload: columns.Payload}
	return openSlotStream(ctx, p.cfg, dec, rows)
}

func (p *pgDatabase) openClaims(ctx context.Context) (claimer, error) {
	t := p.table
	return openSession(ctx, p.cfg.URL, t, true, map[string]string{
		stmtOne: t.claim(" = $1"), stmtMany: t.claim(" = ANY ($1)"),
		stmtClaimed: "SELECT " + t.id() + " FROM " + t.name + " WHERE " + t.id() + " = ANY ($1) AND " + t.statusCondition(store.Processing),
	})
}

func (p *pgDatabase) openCompletions(ctx context.Context, pending bool) (session, error) {
	t := p.table
	complete := t.complete
	if pending {
		complete = t.completePending
	}
	return openSession(ctx, p.cfg.URL, t, !t.layout.DeleteDelivered, map[string]string{
		stmtOne: complete(" = $1"), stmtMany: complete(" = ANY ($1)"),
	})
}

func openSession(ctx context.Context, url string, t *pgTable, timed bool, statements map[string]string) (*pgSession, error) {
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
			closeConn(conn)
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

func (s *pgSession) close() { closeConn(s.conn) }

// bind implements session.
func (s *pgSession) bind(ctx context.Context) (unbind func()) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Conn().SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// findTableSQL returns one row if the table exists. Version 18 streams nothing if the
// publication is missing, and reports that only in its server log.
const findTableSQL = `SELECT $1::regclass::oid, EXISTS (SELECT FROM pg_publication_tables
	WHERE pubname = $2 AND format('%I.%I', schemaname, tablename)::regclass = $1::regclass)`

// findTableOID returns the table's OID.
func (p *pgDatabase) findTableOID(ctx context.Context) (oid uint32, err error) {
	s, err := openSession(ctx, p.cfg.URL, p.table, false, nil)
	if err != nil {
		return 0, err
	}
	defer s.close()
	published := false
	result := s.conn.ExecParams(ctx, findTableSQL, [][]byte{[]byte(p.cfg.Table), []byte(p.cfg.Publication)}, nil, nil, []int16{1})
	for result.NextRow() {
		oid = binary.BigEndian.Uint32(result.Values()[0])
		published = result.Values()[1][0] == 1
	}
	if _, err := result.Close(); err != nil {
		return 0, fmt.Errorf("look up table %s: %w", p.cfg.Table, pgstore.Explain(err))
	}
	if !published {
		return 0, fmt.Errorf("publication %s does not exist, or does not publish %s", p.cfg.Publication, p.cfg.Table)
	}
	return oid, nil
}

// write implements session.
func (s *pgSession) write(rows []row) (int, error) {
	statement := stmtMany
	s.bound.Parameters[0] = rows[0].id
	if len(rows) > 1 {
		s.ids = appendArray(s.ids[:0], rows)
		s.bound.Parameters[0] = s.ids
	} else {
		statement = stmtOne
	}
	if s.timed {
		binary.BigEndian.PutUint64(s.bound.Parameters[1], uint64(time.Now().UnixMicro()-postgresEpoch))
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

// postgresEpoch is the zero of the server's times, 2000-01-01 UTC, in microseconds of Unix
// time.
const postgresEpoch = 946684800 * 1_000_000

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
	result := s.conn.ExecPrepared(context.Background(), stmtClaimed, [][]byte{appendArray(nil, rows)}, nil, nil)
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
