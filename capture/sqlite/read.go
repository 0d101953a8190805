package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// logReader reads batches from the log. One statement joins the log to all outboxes and is
// read row by row, so that the bytes of a batch are bounded too.
type logReader struct {
	conn     *sqlitestore.Conn
	source   *Source
	sql      string
	outboxes map[string]*store.Outbox
	names    []any
}

// columns of the statement.
const (
	colSeq = iota
	colOutbox
	colAt
	colLogged // the type of the id in the log, or a marker's token
	colID     // NULL if the row is gone
	colKind
	colGroup
	colSize    // of the payload, in bytes of the file
	colPayload // NULL if it stays in the table, as the attributes do
	colRetries
	colAttributes
)

func newLogReader(s *Source, conn *sqlitestore.Conn) *logReader {
	r := &logReader{conn: conn, source: s, outboxes: map[string]*store.Outbox{}}
	columns := make([][]string, colAttributes+1)
	var joins []string
	for i := range s.cfg.Outboxes {
		o := &s.cfg.Outboxes[i]
		r.outboxes[o.Name] = o
		r.names = append(r.names, o.Name)
		t, c := fmt.Sprintf("t%d", i), &o.Layout.Columns
		ref := func(name string) string { return t + "." + sqlitestore.Ident(name) }
		attributes := sqlitestore.AttributesOf(&o.Layout, ref)
		if !o.KeepsAttributes() {
			attributes = s.ifInline(o, ref(c.Payload), attributes)
		}
		kind, retries := "NULL", "0"
		if c.Kind != "" {
			kind = sqlitestore.TextOf(ref(c.Kind))
		}
		if c.RetryCount != "" && o.Layout.State != store.StateNone {
			retries = "CAST(coalesce(" + ref(c.RetryCount) + ", 0) AS INTEGER)"
		}
		joins = append(joins, fmt.Sprintf("LEFT JOIN %s AS %s ON l.outbox = ?%d AND %s = l.id",
			sqlitestore.TableName(o), t, i+1, ref(c.ID)))
		for at, x := range map[int]string{
			colID:         sqlitestore.IDText(ref(c.ID)),
			colKind:       kind,
			colGroup:      sqlitestore.GroupOf(&o.Layout, ref),
			colSize:       sqlitestore.PayloadSizeOf(ref(c.Payload)),
			colPayload:    s.ifInline(o, ref(c.Payload), "coalesce("+sqlitestore.PayloadOf(ref(c.Payload))+", '')"),
			colRetries:    retries,
			colAttributes: attributes,
		} {
			columns[at] = append(columns[at], fmt.Sprintf("WHEN ?%d THEN %s", i+1, x))
		}
	}

	n := len(r.names)
	list := []string{"l.seq", "l.outbox", "l.at", "CASE l.outbox WHEN '' THEN CAST(l.id AS TEXT) ELSE typeof(l.id) END"}
	for at := colID; at <= colAttributes; at++ {
		list = append(list, "CASE l.outbox "+strings.Join(columns[at], " ")+" END")
	}

	r.sql = "SELECT " + strings.Join(list, ", ") + "\nFROM " + s.logTable() + " AS l\n" + strings.Join(joins, "\n") +
		fmt.Sprintf("\nWHERE l.seq > ?%d AND l.seq <= ?%d ORDER BY l.seq LIMIT ?%d", n+1, n+2, n+3)
	return r
}

// ifInline is an expression for content that a batch carries only beside its payload.
func (s *Source) ifInline(o *store.Outbox, payload, content string) string {
	if s.resume.MaxPayload <= 0 || o.Layout.LogOnly() {
		return content
	}
	return fmt.Sprintf("CASE WHEN %s <= %d THEN %s END", sqlitestore.PayloadSizeOf(payload), s.resume.MaxPayload, content)
}

// page is the result of one read.
type page struct {
	batch capture.Batch
	last  int64 // last number of the batch
	more  bool  // there may be more rows after it
	bytes int
}

// read reads a batch of the rows with numbers above after, up to until.
func (r *logReader) read(ctx context.Context, after, until int64) (page, error) {
	p := page{last: after}
	limit, rows := r.source.cfg.MaxBatchRows, 0
	now := time.Now()
	args := append(append([]any{}, r.names...), after, until, limit)
	err := r.conn.Query(context.WithoutCancel(ctx), r.sql, args, func(row []driver.Value) error {
		rows++
		fits, err := r.add(&p, row, now)
		if err == nil && !fits {
			p.more = true
			return sqlitestore.StopIteration()
		}
		return err
	})
	if err != nil {
		return p, fmt.Errorf("read log: %w", sqlitestore.Explain(err))
	}

	p.more = p.more || rows == limit
	if p.last > after {
		p.batch.Position = formatPosition(p.last)
	}
	return p, nil
}

// add adds a row of the log to a page. false means that the row belongs to the next page.
func (r *logReader) add(p *page, row []driver.Value, now time.Time) (bool, error) {
	seq, _ := row[colSeq].(int64)
	if seq == p.last {
		return true, nil // a table without a unique id: one of its rows is enough
	}

	name, _ := row[colOutbox].(string)
	if name == "" {
		token, _ := row[colLogged].(string)
		p.batch.Marks = append(p.batch.Marks, token)
		if at, ok := row[colAt].(int64); ok {
			p.batch.Marked = time.UnixMilli(at)
		}
		p.last = seq
		return true, nil
	}

	o := r.outboxes[name]
	if o == nil {
		p.last = seq // of an outbox that is no longer configured
		return true, nil
	}
	if kind := row[colLogged]; kind == "null" || kind == "real" {
		return false, r.missingIDError(o, seq)
	}

	id, found := row[colID].(string)
	if !found {
		p.last = seq // deleted
		return true, nil
	}

	payload := sqlitestore.BytesOf(row[colPayload])
	size, _ := row[colSize].(int64)
	if payload != nil {
		size = int64(len(payload)) // the file may have it in another encoding
	}
	bytes := len(payload) + len(sqlitestore.BytesOf(row[colAttributes]))
	if len(p.batch.Marks) > 0 || len(p.batch.Items) > 0 && p.bytes+bytes > r.source.cfg.MaxBatchBytes {
		return false, nil // the marks of a batch come after its rows
	}

	it := store.Item{
		Ref: store.Ref{Outbox: name, ID: id}, Kind: o.Kind,
		Payload: payload, PayloadSize: int(size), Captured: now,
	}
	if err := readTexts(&it, o, row); err != nil {
		return false, err
	}

	p.batch.Items = append(p.batch.Items, it)
	p.bytes += bytes
	p.last = seq
	return true, nil
}

// readTexts reads what an item has beside its id and payload.
func readTexts(it *store.Item, o *store.Outbox, row []driver.Value) (err error) {
	if o.Layout.Columns.Kind != "" {
		it.Kind, _ = row[colKind].(string)
	}
	if group, ok := row[colGroup].(string); ok {
		it.Group = o.Layout.Group([]byte(group))
	}
	if n, ok := row[colRetries].(int64); ok {
		it.RetryCount = int(n)
	}
	if at, ok := row[colAt].(int64); ok {
		it.Committed = time.UnixMilli(at)
	}
	it.Attributes, err = sqlitestore.ReadAttributes(&o.Layout, row[colAttributes])
	return err
}

// missingIDError reports a row that cannot be claimed. The row is not skipped, because the
// loss would go unnoticed.
func (r *logReader) missingIDError(o *store.Outbox, seq int64) error {
	return &store.SetupError{
		Problem: fmt.Sprintf("outbox %s: row inserted into %s without a usable id: column %s is NULL or a REAL number",
			o.Name, o.Table, o.Layout.Columns.ID),
		Remedy: fmt.Sprintf("give the row an id and write it to the log too: UPDATE %s SET id = … WHERE seq = %d; or drop the row: DELETE FROM %s WHERE seq = %d",
			r.source.logTable(), seq, r.source.logTable(), seq),
	}
}
