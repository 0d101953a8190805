package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/sluicebox/sluicebox/capture"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

const (
	// rowBytes is what a row of the log takes beside its two texts: in the page a
	// pointer (2), the record's length (1) and number (3), then the record's header
	// (5) and the time (6), see https://www.sqlite.org/fileformat2.html.
	rowBytes = 17
	// retainedSample is how many rows, the newest, stand for the size of all.
	retainedSample = 100
)

// Retained estimates how much of the file the log takes behind the acknowledged
// position, without reading all of it: the rows there, of which the numbers tell
// how many they are (none is left out, as a rollback gives its numbers back), times
// the mean size of the newest ones. The rows of the outboxes themselves are not
// counted, the log holds only their ids. There is no limit but the disk.
//
// What was acknowledged and is not yet deleted does not count. Before the first
// acknowledgement since Open, all that the log has does.
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
		return capture.RetainedLog{}, fmt.Errorf("look how long the log is: %w", sqlitestore.Explain(err))
	}
	rows := max(0, last-max(s.acked.Load(), first-1))
	return capture.RetainedLog{Bytes: int64(float64(rows) * (rowBytes + texts))}, nil
}
