package demodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// OpenPostgres opens a connection. The caller closes it with ClosePostgres.
func OpenPostgres(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg.Copy())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, pgstore.ExplainConnect(cfg, err))
	}
	return conn, nil
}

// ClosePostgres closes a connection. It waits at most store.CloseTimeout for the server.
func ClosePostgres(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the server may be gone
}

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
