package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// Open checks the server and resumes at the checkpoint or takes a snapshot. One
// *capture.NoStreamError reports everything that an operator must fix. Open changes nothing
// on the server.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	sv, err := s.ready(ctx)
	if err != nil {
		return capture.OpenResult{}, err
	}

	reason, err := s.snapshotReason(ctx, at, sv)
	if err != nil {
		return capture.OpenResult{}, err
	}

	if reason == "" {
		from, err := parsePosition(at.Position)
		if err != nil {
			return capture.OpenResult{}, err
		}
		s.resetState(sv, from)
		return capture.OpenResult{Origin: at.Origin, From: at.Position}, nil
	}

	if err := tables.ClearCheckpoint(ctx); err != nil {
		return capture.OpenResult{}, err
	}

	view, from, err := takeSnapshot(ctx, tables)
	if err != nil {
		return capture.OpenResult{}, fmt.Errorf("take snapshot: %w", err)
	}

	s.resetState(sv, from)
	return capture.OpenResult{Origin: sv.origin(), From: from.format(), View: view, SnapshotReason: reason}, nil
}

// snapshotReason explains in one line why the log cannot be resumed at the checkpoint; ""
// if it can.
func (s *Source) snapshotReason(ctx context.Context, at store.Checkpoint, sv *server) (string, error) {
	if at.Position == "" {
		return "there is no checkpoint yet", nil
	}

	if !sv.hasOrigin(at.Origin) {
		return fmt.Sprintf("checkpoint belongs to %s, this server is %s", at.Origin, sv.origin()), nil
	}

	from, err := parsePosition(at.Position)
	if err != nil {
		return "checkpoint is unreadable: " + err.Error(), nil
	}

	if err = sv.checkReached(ctx, &from); err == nil {
		err = s.tryPosition(ctx, sv, &from)
	}
	if lost := new(capture.LostError); errors.As(err, &lost) {
		return lost.Reason, nil
	}
	return "", err
}

const (
	// maxTries is how often a position is tried before it is blamed for a server error, and
	// tryInterval the pause between tries. A server that has just started returns many
	// transient errors.
	maxTries    = 3
	tryInterval = 500 * time.Millisecond
)

// tryPosition opens a stream at a position. An error with no other explanation is blamed on
// the position, as a *capture.LostError, only if every try returns it and a stream from the
// current time can be opened.
func (s *Source) tryPosition(ctx context.Context, sv *server, from *oplogPosition) error {
	for try := 1; ; try++ {
		err := s.tryStream(ctx, sv, from)
		if !errors.As(err, new(*fault.UnreadableLogError)) {
			return err
		}
		if try == maxTries {
			return fault.Lostf("cannot resume at the checkpoint: %v", err)
		}
		if err := backoff.Sleep(ctx, tryInterval); err != nil {
			return err
		}
		switch _, now := s.ready(ctx); {
		case errors.As(now, new(*fault.UnreadableLogError)):
			return errors.New(now.Error()) // not caused by the position
		case now != nil:
			return now
		}
	}
}

// takeSnapshot opens a view of the collections and returns the position right after it.
// Everything in the view was written at or before its time, and the stream brings the rest.
func takeSnapshot(ctx context.Context, tables capture.Tables) (store.View, oplogPosition, error) {
	view, err := tables.View(ctx, "")
	if err != nil {
		return nil, oplogPosition{}, err
	}
	last, err := parsePosition(view.Position())
	if err != nil || last.at.IsZero() { // no collection to read from exists
		view.Close()
		return nil, oplogPosition{}, fmt.Errorf("view has no snapshot time: its position is %q", view.Position())
	}
	return view, positionAfter(last.at), nil
}
