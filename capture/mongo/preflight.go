package mongo

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

// inspect checks the server and the configured databases without opening a stream. The store
// has checked that the outboxes are ordinary collections.
func (s *Source) inspect(ctx context.Context) (sv *server, faults fault.List, err error) {
	db, err := s.stream.db()
	if err != nil {
		return nil, faults, err
	}
	sv, err = identify(ctx, db)
	if hasCode(err, errAuthenticationFailed) {
		err = s.loginFault(err.Error()).Err()
	}
	if err != nil {
		return nil, faults, err
	}
	if f := sv.streamFault(); f != nil {
		faults.Add(*f)
		return sv, faults, nil
	}
	if err := sv.checkPrimary(); err != nil {
		return nil, faults, err
	}

	control, err := s.control.db()
	if err != nil {
		return nil, faults, err
	}
	if control.Name() != db.Name() {
		faults.Add(fault.Fault{
			Subject: "stream", Problem: fmt.Sprintf("source.stream-url names database %s, source.url names %s", db.Name(), control.Name()), Instructions: "name the same database in both",
		})
	}
	for i := range s.cfg.Outboxes {
		if o := &s.cfg.Outboxes[i]; o.Schema != "" && o.Schema != db.Name() {
			faults.Add(fault.Fault{
				Subject: "outbox " + o.Name, Problem: fmt.Sprintf("outbox %s: collection %s is in database %s; the change stream covers only database %s", o.Name, o.Table, o.Schema, db.Name()),
				Instructions: "run a relay for each database, or poll",
			})
		}
	}
	return sv, faults, nil
}

// tryStream opens a stream at a position to check that the role may read it and that the
// oplog still reaches back. A server that does not answer in time is scanning from there,
// so the oplog does.
func (s *Source) tryStream(ctx context.Context, sv *server, from *oplogPosition) error {
	c, err := openCursor(ctx, sv, s.plan.pipeline(from, false), s.cfg.Name)
	if err != nil {
		return s.explain(ctx, sv.db, from, err)
	}

	defer c.close(ctx)
	c.maxAwait = time.Millisecond
	tryCtx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if _, err = c.next(tryCtx, 1); tryCtx.Err() != nil || hasCode(err, errTooLarge) {
		return ctx.Err() // the oplog reaches back
	}
	return s.explain(ctx, sv.db, from, err)
}

// endPosition returns the position after everything that the server has written.
func (sv *server) endPosition() oplogPosition { return positionAfter(sv.written()) }

const (
	// readyTimeout bounds Ready.
	readyTimeout = 3 * time.Second
	// tryTimeout bounds the wait for the first answer in tryStream.
	tryTimeout = 2 * time.Second
)

// Ready reports whether Open could read the log now, for a relay that polls. It returns nil
// or the *capture.NoStreamError that Open would return; other errors say nothing about the
// stream. It changes nothing on the server, disturbs no stream, and returns within 3 s. It
// may run concurrently with any call except Close.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	_, err := s.ready(ctx)
	return err
}

// ready runs all checks of Open.
func (s *Source) ready(ctx context.Context) (*server, error) {
	sv, faults, err := s.inspect(ctx)
	if err == nil && sv.streamFault() == nil {
		now := sv.endPosition()
		err = faults.AddErr(s.tryStream(ctx, sv, &now))
	}
	if err != nil {
		return nil, err
	}
	return sv, faults.Err()
}
