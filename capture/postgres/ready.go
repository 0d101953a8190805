package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// readyTimeout bounds Ready.
const readyTimeout = 2 * time.Second

// Ready reports whether Open could read the log now, for a relay that polls. It returns
// nil, or the *capture.NoStreamError that Open would return. If another session holds the
// slot and the caller does not lead, the error is a *store.SetupError. Other errors say
// nothing about the stream.
//
// Ready changes nothing on the server. It returns within 2 s, or 4 s if the server does
// not respond at all. It may be called concurrently with any call except Close.
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
