package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

const (
	// rowBytes is the size of a log row without its two texts: 2 bytes of cell pointer, 1 of
	// record length, 3 of rowid, 5 of record header and 6 of time. See
	// https://www.sqlite.org/fileformat2.html.
	rowBytes = 17
	// retainedSample is the number of newest rows whose mean size is used for all.
	retainedSample = 100
)

// Retained estimates the part of the file that the log after the acknowledged position
// takes, without reading all of it. The estimate is the number of rows times the mean size
// of the newest ones. The numbers give the row count, because they have no gaps: a rollback
// returns its numbers. Rows of the outboxes do not count, because the log holds only their
// ids. There is no limit but the disk.
//
// Rows that are acknowledged but not yet deleted do not count. Before the first
// acknowledgement since Open, the whole log counts.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	table := s.logTable()
	query := fmt.Sprintf(`SELECT (SELECT min(seq) FROM %[1]s), (SELECT max(seq) FROM %[1]s),
	(SELECT avg(length(CAST(outbox AS BLOB)) + coalesce(length(CAST(id AS BLOB)), 0))
		FROM (SELECT outbox, id FROM %[1]s ORDER BY seq DESC LIMIT %[2]d))`, table, retainedSample)
	var first, last int64
	var texts float64
	err := s.readSession.do(ctx, func(conn *sqlitestore.Conn) error {
		return conn.Query(ctx, query, nil, func(row []driver.Value) error {
			first, _ = row[0].(int64)
			last, _ = row[1].(int64)
			texts, _ = row[2].(float64)
			return nil
		})
	})
	if err != nil {
		return capture.RetainedLog{}, fmt.Errorf("read log size: %w", sqlitestore.Explain(err))
	}
	rows := max(0, last-max(s.acked.Load(), first-1))
	return capture.RetainedLog{Bytes: int64(float64(rows) * (rowBytes + texts))}, nil
}
