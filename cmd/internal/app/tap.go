package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	capturepg "github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// tapTimeout is how long the reader of a tap may let a row wait, because the database
// retains log for the tap meanwhile.
const tapTimeout = time.Minute

// errTapTimeout is returned after tapTimeout without a read.
var errTapTimeout = errors.New("tap: no row read for " + tapTimeout.String() + "; stopped so that the server can discard its log")

// Tap shows rows of the outboxes that commit from now on, in commit order, as their
// layouts read them. It needs no leadership, claims and sends nothing, and does not
// affect a running relay. show is called for one row at a time and owns it.
//
// Tap returns the error of show, of the context or of the log. If the log cannot be read,
// that is a *store.SetupError.
func Tap(ctx context.Context, cfg *config.Config, log *slog.Logger, show func(*store.Item) error) error {
	db, err := openDatabase(cfg)
	if err != nil {
		return err
	}
	defer db.store.Close()
	for logged := ""; ; {
		err := tapOnce(ctx, db, log, show)
		var old *capturepg.OldTransactionError // the transaction ends eventually
		if !errors.As(err, &old) {
			return err
		}
		if logged != old.Problem {
			logged = old.Problem
			log.Warn("waiting for open transaction", "reason", old.Problem)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// tapOnce runs one attempt.
func tapOnce(ctx context.Context, db *database, log *slog.Logger, show func(*store.Item) error) error {
	src, err := db.newStream()
	if err != nil {
		return err
	}
	defer src.Close()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	batches := make(chan capture.Batch)
	work, reading := errgroup.WithContext(ctx)
	work.Go(func() error {
		defer close(batches)
		return src.Tap(reading, batches, func() { log.Info("tap started") })
	})
	work.Go(func() error {
		for b := range batches {
			if err := showBatch(&b, show, leave); err != nil {
				return err
			}
			src.Acknowledge(b.Position)
		}
		return nil
	})
	if err = work.Wait(); errors.Is(context.Cause(ctx), errTapTimeout) {
		return errTapTimeout
	}

	return err
}

// showBatch shows a batch, and calls leave if a row waits longer than tapTimeout.
func showBatch(b *capture.Batch, show func(*store.Item) error, leave context.CancelCauseFunc) error {
	for i := range b.Items {
		late := time.AfterFunc(tapTimeout, func() { leave(errTapTimeout) })
		err := show(&b.Items[i])
		late.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}
