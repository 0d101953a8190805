package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// max_slot_wal_keep_size is shown with a unit, or as -1.
const retainedSQL = `
SELECT greatest(pg_current_wal_lsn() - coalesce($2::text::pg_lsn, s.confirmed_flush_lsn), 0)::bigint,
	pg_size_bytes(current_setting('max_slot_wal_keep_size'))
FROM pg_replication_slots s WHERE s.slot_name = $1`

// Retained queries, on the control session, how many bytes of WAL follow the acknowledged
// position. Before the first acknowledgement since Open it uses the slot's position.
// Limit is max_slot_wal_keep_size. The server counts towards the limit from the slot's
// restart_lsn. That is earlier than the acknowledged position, back to the start of the
// oldest transaction open there. If the slot does not exist, the error is a
// *capture.LostError.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	var acked *string
	if lsn := pglogrepl.LSN(s.acked.Load()); lsn != 0 {
		text := lsn.String()
		acked = &text
	}
	var kept capture.RetainedLog
	err := s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, retainedSQL, s.cfg.Name, acked).Scan(&kept.Bytes, &kept.Limit)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return capture.RetainedLog{}, &capture.LostError{Reason: fmt.Sprintf("slot %s is gone", s.cfg.Name)}
	case err != nil:
		return capture.RetainedLog{}, fmt.Errorf("query WAL retained by slot %s: %w", s.cfg.Name, pgstore.Explain(err))
	}
	switch {
	case kept.Limit < 0:
		kept.Limit = 0
	case kept.Limit == 0:
		kept.Limit = 1 // the server retains WAL only until its next checkpoint
	}
	return kept, nil
}
