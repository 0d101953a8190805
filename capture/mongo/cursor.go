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
)

const (
	// HeartbeatPeriod is how often something comes from an idle server, at the least.
	HeartbeatPeriod = 2 * time.Second
	// awaitTime is how long the server waits for an event before it answers without.
	awaitTime = time.Second
	// silenceTimeout is how long a server may say nothing, longer than awaitTime, before it is
	// asked whether it is still there. It may be reading its way through an oplog
	// without an event.
	silenceTimeout = 2500 * time.Millisecond
	// pingTimeout is how long it may take to answer that.
	pingTimeout = 3 * time.Second
	// closeTimeout bounds the end of a cursor.
	closeTimeout = time.Second
)

// cursor is a change stream that is open on one server. The commands are the relay's
// own: the driver's change stream would open itself anew when it was lost, without a
// word, and hides the token that stands for the end of an empty answer. A cursor is
// opened once; what ends it is told.
type cursor struct {
	db       *mongo.Database
	session  *mongo.Session // the server lets only the session that opened it read on
	server   string         // address
	id       int64
	maxAwait time.Duration // for an event
	// onAlive is called, if set, whenever a server that has been silent for long is
	// found to be there, from any goroutine.
	onAlive func()

	// While the answers are full the next one is asked for before it is wanted: the
	// server works on it while the last one is read. id belongs to who asks.
	prefetched   chan fetchResult // nil: nobody asks
	stopPrefetch context.CancelFunc
}

// fetchResult is what came of asking.
type fetchResult struct {
	cursorBatch
	err error
}

// cursorBatch is what the server had to say.
type cursorBatch struct {
	events []bson.RawValue
	// postBatchToken is the token of the last event, or, if that is later, of the time up to
	// which there is none: the post-batch resume token.
	postBatchToken bson.Raw
}

// openCursor opens a stream. It answers at once; whether the oplog still
// reaches back is told by the first answer.
func openCursor(ctx context.Context, db *mongo.Database, sv *server, pipeline bson.A, relay string) (*cursor, error) {
	session, err := db.Client().StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return nil, fmt.Errorf("begin a session: %w", err)
	}
	c := &cursor{db: db, session: session, server: sv.address, maxAwait: awaitTime}
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

// errClosed says that the server has closed the stream by itself.
var errClosed = errors.New("the server has closed the change stream")

// next waits for events, at most rows of them, no longer than c.wait where there are
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

// fetch asks for events. A server that says nothing for long is asked whether it is
// there; the context bounds nothing but the relay's own patience, since a server may
// look for the next event for minutes.
func (c *cursor) fetch(ctx context.Context, rows int) (cursorBatch, error) {
	if c.id == 0 {
		return cursorBatch{}, errClosed
	}
	// Of a deadline the driver would make a second maxTimeMS.
	waits, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { giveUp(ctx.Err()) })()
	defer giveUp(nil)
	answered, end := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { c.watch(answered, giveUp) })
	raw, err := c.run(waits, bson.D{
		{Key: "getMore", Value: c.id},
		{Key: "collection", Value: "$cmd.aggregate"},
		{Key: "batchSize", Value: rows},
		{Key: "maxTimeMS", Value: c.maxAwait.Milliseconds()},
	})
	end()
	watching.Wait()
	if err != nil {
		if why := context.Cause(waits); why != nil && ctx.Err() == nil {
			err = why
		}
		return cursorBatch{}, err
	}
	return c.parseBatch(raw, "nextBatch")
}

// watch gives a server up that does not answer, or that is no longer the one that the
// cursor is on. It ends with the context.
func (c *cursor) watch(ctx context.Context, giveUp context.CancelCauseFunc) {
	tick := time.NewTimer(silenceTimeout)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(ctx, pingTimeout)
		raw, err := runAdminCommand(asking, c.db, bson.D{{Key: "hello", Value: 1}})
		cancel()
		switch now := lookupString(raw, "me"); {
		case ctx.Err() != nil:
			return
		case err != nil:
			giveUp(fmt.Errorf("the server at %s has said nothing for %s, and nothing to a hello either: %w", c.server, silenceTimeout+pingTimeout, err))
			return
		case now != c.server:
			giveUp(fmt.Errorf("the server at %s has said nothing for %s, and by now %s takes its place", c.server, silenceTimeout, now))
			return
		}
		if c.onAlive != nil {
			c.onAlive()
		}
		tick.Reset(silenceTimeout)
	}
}

// parseBatch reads an answer.
func (c *cursor) parseBatch(raw bson.Raw, batch string) (cursorBatch, error) {
	said, ok := raw.Lookup("cursor").DocumentOK()
	if !ok {
		return cursorBatch{}, errors.New("the server's answer has another form: it has no cursor")
	}
	c.id, _ = said.Lookup("id").Int64OK()
	var a cursorBatch
	a.postBatchToken, _ = said.Lookup("postBatchResumeToken").DocumentOK()
	if list, ok := said.Lookup(batch).ArrayOK(); ok {
		var err error
		if a.events, err = list.Values(); err != nil {
			return cursorBatch{}, fmt.Errorf("the server's answer cannot be read: %w", err)
		}
	}
	return a, nil
}

// close ends the cursor at the server, also when the context has ended.
func (c *cursor) close(ctx context.Context) {
	if c.prefetched != nil {
		c.stopPrefetch()
		<-c.prefetched
		c.prefetched = nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if c.id != 0 {
		_, _ = c.run(ctx, bson.D{{Key: "killCursors", Value: "$cmd.aggregate"}, {Key: "cursors", Value: bson.A{c.id}}})
		c.id = 0
	}
	c.session.EndSession(ctx)
}
