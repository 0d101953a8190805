package mongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/acked"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// Source is the oplog of one replica set, by way of a change stream of one database.
type Source struct {
	cfg      Config
	plan     *plan
	control  *lazyClient
	stream   *lazyClient
	resume   capture.Resume
	failures fault.FailureCounter

	server *server // what Open found; nil before

	acks  acked.Tracker[oplogPosition]
	oplog oplogMeter
}

var _ capture.Resumer = (*Source)(nil)

// Resume returns what has been sent so far.
func (s *Source) Resume() *capture.Resume { return &s.resume }

// Acknowledge notes that the log up to a position is no longer needed, by which
// Retained measures. Nobody is told: the server bounds its oplog by its size. A
// position that was not sent since Open is ignored: it is of another log.
func (s *Source) Acknowledge(p store.Position) {
	s.acks.Acknowledge(p, parsePosition, comparePositions)
}

// resetState forgets what an earlier Open found.
func (s *Source) resetState(sv *server, at oplogPosition) {
	from := at.format()
	s.server = sv
	s.acks.Reset(from, at)
	s.oplog.reset(at.previousTime())
	s.resume.Reset(from)
}

// Mark writes a marker: the relay's document of the markers is replaced by one with the
// token, which the stream brings back. It comes as soon as a majority has it.
//
// To wait until the stream has passed the time of a majority read would write nothing,
// but a stream without events tells how far it is once a second (measured: 60 to 960 ms,
// against 1 to 50 ms), and what was committed without a majority could come behind the
// marker.
func (s *Source) Mark(ctx context.Context, token string) error {
	db, err := s.control.db()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	marks := db.Collection(markCollection, options.Collection().SetWriteConcern(writeconcern.Majority()))
	// A document that is replaced by the same leaves no trace in the oplog.
	mark := bson.D{{Key: "_id", Value: s.cfg.Name}, {Key: fieldMark, Value: token}, {Key: "mark", Value: bson.NewObjectID()}}
	if _, err := marks.ReplaceOne(ctx, bson.D{{Key: "_id", Value: s.cfg.Name}}, mark, options.Replace().SetUpsert(true)); err != nil {
		return fmt.Errorf("write a marker into collection %s: %w", markCollection, mongostore.Explain(err))
	}
	return nil
}

// Compare orders two positions, by their times and then by their tokens.
func (s *Source) Compare(a, b store.Position) int { return comparePositions(a, b) }

// Close ends the connections. Call it when no other call is open.
func (s *Source) Close() {
	s.control.close()
	s.stream.close()
}
