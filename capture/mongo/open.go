package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// Open checks the server and goes on from the checkpoint or makes a cut. One
// *capture.NoStreamError names everything that is to be done by hand. Nothing is made
// on the server.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	sv, err := s.ready(ctx)
	if err != nil {
		return capture.OpenResult{}, err
	}
	why, err := s.snapshotReason(ctx, at, sv)
	if err != nil {
		return capture.OpenResult{}, err
	}
	if why == "" {
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
		return capture.OpenResult{}, fmt.Errorf("read the collections as of a time in the oplog: %w", err)
	}
	s.resetState(sv, from)
	return capture.OpenResult{Origin: sv.origin(), From: from.format(), View: view, SnapshotReason: why}, nil
}

// snapshotReason says in one line why the log cannot be taken up at the checkpoint; "" if it
// can.
func (s *Source) snapshotReason(ctx context.Context, at store.Checkpoint, sv *server) (string, error) {
	if at.Position == "" {
		return "there is no checkpoint yet", nil
	}
	if !sv.hasOrigin(at.Origin) {
		return fmt.Sprintf("the checkpoint is of %s, this is %s", at.Origin, sv.origin()), nil
	}
	from, err := parsePosition(at.Position)
	if err != nil {
		return "the checkpoint is unreadable: " + err.Error(), nil
	}
	db, err := s.stream.db()
	if err != nil {
		return "", err
	}
	if err = sv.checkReached(ctx, db, &from); err == nil {
		err = s.tryPosition(ctx, db, sv, &from)
	}
	var gone *capture.LostError
	var unread *fault.UnreadableLogError
	switch {
	case errors.As(err, &gone):
		return gone.Reason, nil
	case errors.As(err, &unread):
		return fmt.Sprintf("the checkpoint cannot be taken up: %v", unread), nil
	}
	return "", err
}

const (
	// maxTries is how often a place is tried before it is to blame for what the server
	// says, and tryInterval the pause in between: a server that has just started says much
	// that passes.
	maxTries    = 3
	tryInterval = 500 * time.Millisecond
)

// tryPosition opens a stream at a place. An answer that no other error explains is the
// place's fault only if it comes each time, and a stream from now on can be opened.
func (s *Source) tryPosition(ctx context.Context, db *mongo.Database, sv *server, from *oplogPosition) error {
	for try := 1; ; try++ {
		err := s.tryStream(ctx, db, sv, from)
		if !errors.As(err, new(*fault.UnreadableLogError)) || try == maxTries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tryInterval):
		}
		switch _, now := s.ready(ctx); {
		case errors.As(now, new(*fault.UnreadableLogError)):
			return errors.New(now.Error()) // no place's fault
		case now != nil:
			return now
		}
	}
}

// takeSnapshot opens a view of the collections and returns the place just behind it: what the
// view shows was written at its time or before, and the stream brings the rest.
func takeSnapshot(ctx context.Context, tables capture.Tables) (store.View, oplogPosition, error) {
	view, err := tables.View(ctx, "")
	if err != nil {
		return nil, oplogPosition{}, err
	}
	at, ok := mongostore.ParseSnapshotPosition(view.Position())
	if !ok || at.IsZero() { // it read of no collection that there is
		view.Close()
		return nil, oplogPosition{}, fmt.Errorf("the view does not tell its time: its position is %q", view.Position())
	}
	return view, positionAfter(at), nil
}
