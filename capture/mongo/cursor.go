package mongo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// HeartbeatPeriod is the maximum interval between messages from an idle server.
	HeartbeatPeriod = 2 * time.Second
	// awaitTime is how long the server waits for an event before it sends an empty answer.
	awaitTime = time.Second
	// silenceTimeout is how long a server may stay silent, longer than awaitTime, before it
	// is pinged. It may be scanning its oplog without finding an event.
	silenceTimeout = 2500 * time.Millisecond
	// pingTimeout bounds that ping.
	pingTimeout = 3 * time.Second
)

// cursor is a change stream opened on one server. It runs the commands itself and never
// reconnects; the caller gets every error. The driver's change stream is not used, for two
// reasons: it silently reopens a lost stream, and it hides the token of an empty answer.
type cursor struct {
	db       *mongo.Database
	session  *mongo.Session // the server lets only the opening session read on
	server   string         // address
	id       int64
	maxAwait time.Duration // for an event
	// onAlive, if set, is called when a long silent server answers a ping. It may run on
	// any goroutine.
	onAlive func()

	// While the answers are full the next one is requested early, so that the server works
	// while the last one is processed. The requesting goroutine owns id.
	prefetched   chan fetchResult // nil: no request in flight
	stopPrefetch context.CancelFunc
}

// fetchResult is the result of one request.
type fetchResult struct {
	cursorBatch
	err error
}

// cursorBatch is one answer of the server.
type cursorBatch struct {
	events []bson.RawValue
	// postBatchToken is the post-batch resume token: the token of the last event or, if
	// later, of the time up to which there are no more events.
	postBatchToken bson.Raw
}

// openCursor opens a stream. It returns at once; only the first answer shows whether the
// oplog still reaches back far enough.
func openCursor(ctx context.Context, sv *server, pipeline bson.A, relay string) (*cursor, error) {
	session, err := sv.db.Client().StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return nil, fmt.Errorf("start session: %w", err)
	}

	c := &cursor{db: sv.db, session: session, server: sv.Address, maxAwait: awaitTime}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	raw, err := c.run(ctx, bson.D{
		{Key: "aggregate", Value: 1},
		{Key: "pipeline", Value: pipeline},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
		{Key: "comment", Value: "sluicebox " + relay},
	})
	if err == nil {
		_, err = c.parseBatch(raw, "firstBatch")
	}

	if err != nil {
		c.close(ctx)
		return nil, err
	}

	return c, nil
}

func (c *cursor) run(ctx context.Context, command bson.D) (bson.Raw, error) {
	return c.db.RunCommand(mongo.NewSessionContext(ctx, c.session), command).Raw()
}

// errClosed says that the server closed the stream by itself.
var errClosed = errors.New("server closed the change stream")

// next waits for events, at most rows of them, and for at most c.maxAwait if there are
// none.
func (c *cursor) next(ctx context.Context, rows int) (cursorBatch, error) {
	var f fetchResult
	if c.prefetched != nil {
		f = <-c.prefetched
		c.prefetched = nil
		c.stopPrefetch()
	} else {
		f.cursorBatch, f.err = c.fetch(ctx, rows)
	}

	if f.err == nil && len(f.events) >= rows && rows > 1 {
		ctx, c.stopPrefetch = context.WithCancel(ctx)
		ahead := make(chan fetchResult, 1)
		c.prefetched = ahead
		go func() {
			a, err := c.fetch(ctx, rows)
			ahead <- fetchResult{a, err}
		}()
	}
	return f.cursorBatch, f.err
}

// fetch requests events and pings a server that stays silent. Canceling ctx only stops
// waiting for the answer, because a server may search for the next event for minutes.
func (c *cursor) fetch(ctx context.Context, rows int) (cursorBatch, error) {
	if c.id == 0 {
		return cursorBatch{}, errClosed
	}

	// The driver would derive a second maxTimeMS from a deadline.
	cmdCtx, cancelCmd := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { cancelCmd(ctx.Err()) })()
	defer cancelCmd(nil)
	watchCtx, endWatch := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { c.watch(watchCtx, cancelCmd) })
	raw, err := c.run(cmdCtx, bson.D{
		{Key: "getMore", Value: c.id},
		{Key: "collection", Value: "$cmd.aggregate"},
		{Key: "batchSize", Value: rows},
		{Key: "maxTimeMS", Value: c.maxAwait.Milliseconds()},
	})
	endWatch()
	watcher.Wait()
	if err != nil {
		if cause := context.Cause(cmdCtx); cause != nil && ctx.Err() == nil {
			err = cause
		}
		return cursorBatch{}, err
	}

	return c.parseBatch(raw, "nextBatch")
}

// watch gives up on a server that does not answer a ping, or whose address another server
// now has. It ends with the context.
func (c *cursor) watch(ctx context.Context, cancelCmd context.CancelCauseFunc) {
	tick := time.NewTimer(silenceTimeout)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
		raw, err := runAdminCommand(pingCtx, c.db, bson.D{{Key: "hello", Value: 1}})
		cancel()
		switch now := lookupString(raw, "me"); {
		case ctx.Err() != nil:
			return
		case err != nil:
			cancelCmd(fmt.Errorf("no message from server %s for %s, nor an answer to hello: %w", c.server, silenceTimeout+pingTimeout, err))
			return
		case now != c.server:
			cancelCmd(fmt.Errorf("no message from server %s for %s; %s is now the primary", c.server, silenceTimeout, now))
			return
		}
		if c.onAlive != nil {
			c.onAlive()
		}
		tick.Reset(silenceTimeout)
	}
}

// parseBatch parses an answer.
func (c *cursor) parseBatch(raw bson.Raw, batch string) (cursorBatch, error) {
	doc, ok := raw.Lookup("cursor").DocumentOK()
	if !ok {
		return cursorBatch{}, errors.New("unexpected server answer: no cursor")
	}

	c.id, _ = doc.Lookup("id").Int64OK()
	var a cursorBatch
	a.postBatchToken, _ = doc.Lookup("postBatchResumeToken").DocumentOK()
	if list, ok := doc.Lookup(batch).ArrayOK(); ok {
		var err error
		if a.events, err = list.Values(); err != nil {
			return cursorBatch{}, fmt.Errorf("parse server answer: %w", err)
		}
	}
	return a, nil
}

// close closes the cursor on the server, even if the context has ended.
func (c *cursor) close(ctx context.Context) {
	if c.prefetched != nil {
		c.stopPrefetch()
		<-c.prefetched
		c.prefetched = nil
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.CloseTimeout)
	defer cancel()
	if c.id != 0 {
		_, _ = c.run(ctx, bson.D{{Key: "killCursors", Value: "$cmd.aggregate"}, {Key: "cursors", Value: bson.A{c.id}}})
		c.id = 0
	}

	c.session.EndSession(ctx)
}
