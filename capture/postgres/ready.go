package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// readyTimeout bounds Ready.
const readyTimeout = 2 * time.Second

// Ready tells whether Open could read the log now, for a relay that polls: nil,
// or what Open would return, which is a *capture.NoStreamError. That another
// session holds the slot is a *store.SetupError to a caller that does not lead.
// Other errors say nothing about the stream. It changes nothing on the server,
// answers within 2 s, or 4 s where the server does not answer at all, and may be
// called beside any call but Close.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := s.control.retryOnce(ctx, func(conn *pgx.Conn) error {
		_, wrong, err := s.inspect(ctx, conn)
		if err != nil {
			return err
		}
		repl, _, err := s.dial(ctx)
		closeSession(repl)
		if err := wrong.AddErr(err); err != nil {
			return err
		}
		if err := wrong.Err(); err != nil {
			return err
		}
		sl, err := s.readOwnSlot(ctx, conn)
		if err == nil && sl.active && (!s.cfg.TakeOver || !sl.terminable) {
			err = s.slotHeldError(&sl)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.checkOldestTransaction(ctx)
}
