package demodb

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store/backoff"
)

// slotPollInterval is the time between two tries to drop a slot.
const slotPollInterval = 20 * time.Millisecond

// DropSlot drops a replication slot, if it exists. A walsender may need a moment to release it.
func (s *SQL) DropSlot(ctx context.Context, name string) error {
	for {
		_, err := s.ExecContext(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", name)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55006" { // object_in_use
			return err
		}
		if err := backoff.Sleep(ctx, slotPollInterval); err != nil {
			return err
		}
	}
}
