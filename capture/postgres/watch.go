package postgres

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/capture/postgres/internal/testdecoding"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// watchPlugin is the output plugin of a watch. It comes with the server, as pgoutput does, and
// shows the whole new row of an update without a publication or a replica identity.
const watchPlugin = "test_decoding"

// Watch sends every change of the outbox tables from now on; see capture.Watcher. It reads
// through a temporary slot, which the server drops with the session. The server decodes the
// changes of all tables of the database for it. Errors are as those of Tap.
func (s *Source) Watch(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	s.cfg.MayCreate, s.cfg.HeartbeatInterval = false, -1 // it writes nothing
	conn, p, err := s.openWatch(ctx)
	if err != nil {
		closeSession(conn)
		return err
	}
	begun()
	_, err = s.readStream(ctx, conn, p, out)
	return err
}

// openWatch starts a stream from a temporary slot. The caller closes the session, also after an
// error.
func (s *Source) openWatch(ctx context.Context) (conn *pgconn.PgConn, p streamRange, err error) {
	if err = s.control.retryOnce(ctx, func(c *pgx.Conn) (err error) {
		s.server, s.watched, err = s.catalog(c).inspectWatched(ctx)
		return err
	}); err != nil {
		return nil, p, err
	}
	if conn, s.system, err = s.slots.dial(ctx); err != nil {
		return conn, p, err
	}
	name := s.slots.tempName("watch")
	created, _, err := s.slots.create(ctx, conn, name, watchPlugin, pglogrepl.CreateReplicationSlotOptions{
		Temporary: true, SnapshotAction: "NOEXPORT_SNAPSHOT",
	})
	if err != nil {
		return conn, p, explainNoPlugin(explainNoFreeSlot(err, "a shadow needs one while it runs"))
	}
	if p.from, err = pglogrepl.ParseLSN(created.ConsistentPoint); err != nil {
		return conn, p, err
	}
	s.confirmed = p.from
	s.resetState(formatLSN(p.from))
	if p.timeout, err = senderTimeout(ctx, conn); err != nil {
		return conn, p, err
	}
	err = pglogrepl.StartReplication(ctx, conn, name, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		`"include-timestamp" 'true'`, `"skip-empty-xacts" 'true'`,
	}})
	return conn, p, s.slots.explainStreamError(err)
}

// senderTimeout returns the wal_sender_timeout of a session.
func senderTimeout(ctx context.Context, conn *pgconn.PgConn) (time.Duration, error) {
	results, err := conn.Exec(ctx, "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'").ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	ms, err := strconv.Atoi(string(results[0].Rows[0][0]))
	if err != nil {
		return 0, fmt.Errorf("wal_sender_timeout: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// explainNoPlugin adds the remedy if the server does not have the plugin.
func explainNoPlugin(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "58P01" && pg.Code != "42704" { // undefined_file, undefined_object
		return err
	}
	return fault.NoStream("server has no output plugin "+watchPlugin+": "+pg.Message, "install the package with the server's contrib modules, for example postgresql-contrib")
}

// inspectWatched reads what a watch needs of the catalogs.
func (c *catalog) inspectWatched(ctx context.Context) (*server, []*watchedTable, error) {
	var sv server
	var faults fault.List
	err := c.conn.QueryRow(ctx, serverSQL, c.cfg.Name).Scan(&sv.version, &sv.user, &sv.walLevel,
		&sv.slots, &sv.maxSlots, &sv.hasSlot, &sv.recovery)
	if err != nil {
		return nil, nil, fmt.Errorf("inspect server: %w", pgstore.Explain(err))
	}
	if sv.recovery {
		return nil, nil, errStandby
	}
	sv.hasSlot = false // it is no help
	c.checkServer(&sv, &faults)
	if sv.tables, err = c.findTables(ctx, &faults); err != nil {
		return nil, nil, err
	}
	var watched []*watchedTable
	for _, t := range sv.tables {
		w, err := c.watchedTable(ctx, t)
		if err != nil {
			return nil, nil, err
		}
		watched = append(watched, w)
	}
	return &sv, watched, faults.Err()
}

// watchedTable finds the columns of a table.
func (c *catalog) watchedTable(ctx context.Context, t *table) (*watchedTable, error) {
	rows, err := c.conn.Query(ctx, "SELECT attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped", t.oid)
	if err != nil {
		return nil, fmt.Errorf("read columns of %s: %w", t.quoted(), pgstore.Explain(err))
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read columns of %s: %w", t.quoted(), pgstore.Explain(err))
	}
	w := &watchedTable{oid: t.oid, name: t.quoted(), columns: map[string]int{}}
	has := map[string]bool{}
	for _, name := range names {
		has[name] = true
	}
	find := func(name string) int {
		if !has[name] {
			return -1
		}
		at, known := w.columns[name]
		if !known {
			at = len(w.columns)
			w.columns[name] = at
		}
		return at
	}
	missing := fault.MissingColumnsError{Log: "the database", Table: w.name}
	missing.Remedy = "correct the layout"
	for _, o := range t.outboxes {
		columns, err := logsource.FindChangeColumns(o, find, missing, `"`)
		if err != nil {
			return nil, err
		}
		w.outboxes = append(w.outboxes, columns)
	}
	return w, nil
}

// watchedTable is an outbox table with the columns that changes are read from.
type watchedTable struct {
	oid      uint32
	name     string
	columns  map[string]int
	outboxes []logsource.ChangeColumns
}

// watch finds the watched tables of a stream.
type watch struct {
	resolve func(name string, wait time.Duration) (oid uint32, err error)
	tables  map[uint32]*watchedTable
	byName  map[string]*watchedTable // nil is another table
	absent  map[string]time.Time     // names without a table: when they were asked for
	number  store.Txn                // of transactions
	row     textRow
}

// The log shows a new table before a query does, as long as its transaction is committing. So a
// name without a table is asked for again for visibleWait, and then once in nameInterval.
const (
	visibleWait  = 500 * time.Millisecond
	nameInterval = time.Second
)

// maxWatchedNames bounds the names in memory, because temporary tables have ever new ones.
const maxWatchedNames = 10_000

// rootSQL returns the table that a name of the log is a partition of, or the table itself. Since
// the log may be behind, a table may have another name by now, or be gone.
const rootSQL = `SELECT coalesce(pg_partition_root(c)::oid, c::oid, 0) FROM to_regclass($1) c`

func (s *Source) newWatch(ctx context.Context) *watch {
	w := &watch{tables: map[uint32]*watchedTable{}, byName: map[string]*watchedTable{}, absent: map[string]time.Time{}}
	for _, t := range s.watched {
		w.tables[t.oid], w.byName[t.name] = t, t
	}
	w.resolve = func(name string, limit time.Duration) (oid uint32, err error) {
		wait := backoff.Doubling{Min: time.Millisecond, Max: 50 * time.Millisecond}
		for began := time.Now(); ; {
			err = s.control.retryOnce(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, rootSQL, name).Scan(&oid) })
			if err != nil {
				return 0, fmt.Errorf("look up table %s: %w", name, pgstore.Explain(err))
			}
			if oid != 0 || time.Since(began) >= limit {
				return oid, nil
			}
			if err := wait.Wait(ctx); err != nil {
				return 0, err
			}
		}
	}
	return w
}

// find returns the table of a name, as the log quotes it, or nil. It asks the server once for
// each name of a table.
func (w *watch) find(name []byte) (*watchedTable, error) {
	if t, known := w.byName[string(name)]; known {
		return t, nil
	}
	wait := visibleWait
	if at, absent := w.absent[string(name)]; absent {
		if wait = 0; time.Since(at) < nameInterval {
			return nil, nil
		}
	}
	oid, err := w.resolve(string(name), wait)
	if err != nil {
		return nil, err
	}
	if len(w.byName)+len(w.absent) >= maxWatchedNames {
		clear(w.byName)
		clear(w.absent)
	}
	if oid == 0 {
		w.absent[string(name)] = time.Now()
		return nil, nil
	}
	delete(w.absent, string(name))
	t := w.tables[oid]
	w.byName[string(name)] = t
	return t, nil
}

// textRow is a tuple of a watched table. Its columns are numbered as watchedTable.columns.
type textRow struct {
	table  *watchedTable
	values []testdecoding.Column
	has    []bool
}

// read reads a tuple. The values alias it.
func (r *textRow) read(t *watchedTable, tuple []byte) error {
	r.table = t
	r.values = append(r.values[:0], make([]testdecoding.Column, len(t.columns))...)
	r.has = append(r.has[:0], make([]bool, len(t.columns))...)
	for len(tuple) > 0 {
		c, err := testdecoding.Next(&tuple)
		if err != nil {
			return fmt.Errorf("test_decoding: table %s: %w", t.name, err)
		}
		if at, wanted := t.columns[string(c.Name)]; wanted {
			r.values[at], r.has[at] = c, !c.Unchanged
		}
	}
	return nil
}

func (r *textRow) Table() (schema, name string) { return "", r.table.name }

func (r *textRow) Has(column int) bool { return r.has[column] }

func (r *textRow) IsNull(column int) bool { return r.values[column].Value == nil }

func (r *textRow) Size(column int) int { return len(r.values[column].Value) }

func (r *textRow) AppendText(dst []byte, column int) ([]byte, error) {
	return append(dst, r.values[column].Value...), nil
}

func (r *textRow) AppendBytes(dst []byte, column int) ([]byte, error) {
	v := &r.values[column]
	if text, ok := bytes.CutPrefix(v.Value, []byte(byteaPrefix)); ok && string(v.Type) == "bytea" {
		return hex.AppendDecode(dst, text)
	}
	return append(dst, v.Value...), nil
}

// textMessage handles one message of test_decoding.
func (a *assembler) textMessage(text []byte) (b capture.Batch, ready bool, err error) {
	m, err := testdecoding.Parse(text)
	if err != nil {
		return b, false, err
	}
	switch m.Kind {
	case testdecoding.Other:
		return b, false, nil
	case testdecoding.Begin:
		a.open = true
		a.watch.number++
		a.tx.ID, a.tx.Committed = a.watch.number, time.Time{} // the time comes with the commit
		return b, false, nil
	case testdecoding.Commit:
		a.tx.Committed = m.At
		b, _ = a.tx.TakeChanges(false)
		b.Position, a.open = formatLSN(a.at), false
		return b, true, nil
	case testdecoding.Truncate:
		for _, name := range m.Tables {
			t, err := a.watch.find(name)
			if err != nil {
				return b, false, err
			}
			if t != nil {
				a.tx.AddTruncate(t.outboxes)
			}
		}
		return b, false, nil
	}
	t, err := a.watch.find(m.Tables[0])
	if err != nil || t == nil {
		return b, false, err
	}
	if err := a.watch.row.read(t, m.Tuple); err != nil {
		return b, false, err
	}
	kind := map[testdecoding.Kind]capture.ChangeKind{testdecoding.Insert: capture.Inserted, testdecoding.Update: capture.Updated, testdecoding.Delete: capture.Deleted}[m.Kind]
	if err := a.tx.AddChange(kind, &a.watch.row, t.outboxes); err != nil {
		return b, false, err
	}
	b, ready = a.tx.TakeChanges(true)
	return b, ready, nil
}
