package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// Source reads the oplog of one replica set through a change stream of one database.
type Source struct {
	cfg      Config
	plan     *plan
	control  *lazyClient
	stream   *lazyClient
	resume   capture.Resume
	failures fault.FailureCounter

	server   *server // as seen by Open; nil before
	watching bool    // set by Watch

	acks  logsource.Acks[oplogPosition]
	oplog oplogMeter
}

var _ capture.Resumer = (*Source)(nil)

// Resume returns the state of what has been sent so far.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Acknowledge records that the log up to a position is no longer needed; Retained measures
// from there. The server is not informed, because it truncates its oplog by size. Positions
// not sent since Open are ignored: they belong to another log.
func (s *Source) Acknowledge(p store.Position) {
	s.acks.Acknowledge(p, parsePosition, comparePositions)
}

// resetState discards the state of an earlier Open.
func (s *Source) resetState(sv *server, at oplogPosition) {
	from := at.format()
	s.server = sv
	s.acks.Reset(from, at)
	s.oplog.reset(at.previousTime())
	s.resume.Reset(from)
}

// Mark writes a marker: it replaces the relay's document in the marker collection with one
// that contains the token, and the stream returns it once it is majority-committed.
//
// Why not wait until the stream passes the time of a majority read, which needs no write? A
// stream without events reports its progress only once a second (measured: 60 to 960 ms,
// against 1 to 50 ms). And events committed without a majority could follow the marker.
func (s *Source) Mark(ctx context.Context, token string) error {
	db, err := s.control.db()
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	marks := db.Collection(markCollection, options.Collection().SetWriteConcern(writeconcern.Majority()))
	// Replacing a document with an identical one leaves no oplog entry.
	mark := bson.D{{Key: "_id", Value: s.cfg.Name}, {Key: fieldMark, Value: token}, {Key: "mark", Value: bson.NewObjectID()}}
	if _, err := marks.ReplaceOne(ctx, bson.D{{Key: "_id", Value: s.cfg.Name}}, mark, options.Replace().SetUpsert(true)); err != nil {
		return fmt.Errorf("write marker to collection %s: %w", markCollection, mongostore.Explain(err))
	}
	return nil
}

// Compare orders two positions by time and then by token.
func (s *Source) Compare(a, b store.Position) int { return comparePositions(a, b) }

// Close ends the connections. Call it when no other call is running.
func (s *Source) Close() {
	s.control.close()
	s.stream.close()
}

// Publish does nothing: the oplog contains every collection, and the first marker creates
// the marker collection.
func (s *Source) Publish(context.Context) error { return nil }

// Script returns no statements, for the same reason.
func (s *Source) Script() string { return "" }
