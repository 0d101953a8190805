package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

var (
	_ capture.HistoryReader    = (*Source)(nil)
	_ capture.RetentionChecker = (*Source)(nil)
)

// CheckReachable implements capture.HistoryReader. It opens a change stream after the
// position and requests one answer. The server truncates its oplog by size, regardless of
// readers.
func (s *Source) CheckReachable(ctx context.Context, at capture.StartPoint) error {
	_, _, err := s.locateHistory(ctx, at)
	return err
}

// ReadRange implements capture.HistoryReader. It reads a change stream of its own. A
// receiver may pause for as long as the oplog reaches back.
func (s *Source) ReadRange(ctx context.Context, at capture.StartPoint, until store.Position, out chan<- capture.Batch) error {
	sv, from, err := s.locateHistory(ctx, at)
	if err != nil {
		return err
	}

	end, err := parsePosition(until)
	if err != nil {
		return fault.OtherLogf("%v", err)
	}

	if end.compare(&from) <= 0 {
		return nil
	}

	if err := checkHistoryPosition(ctx, sv, &end); err != nil {
		return err
	}

	s.resetState(sv, from)
	s.resume.ResetPartial(from.format(), at.Skip)
	st := &stream{src: s, out: out, at: from, until: &end}
	s.resume.Start(s, from.format())
	return s.classifyEnd(ctx, st, st.read(ctx))
}

// locateHistory checks that the oplog belongs to the position's log and holds everything
// after the position.
func (s *Source) locateHistory(ctx context.Context, at capture.StartPoint) (*server, oplogPosition, error) {
	sv, err := s.ready(ctx)
	if err != nil {
		return nil, oplogPosition{}, err
	}

	if !sv.hasOrigin(at.Origin) && (at.Origin != "" || at.Position != "") {
		return nil, oplogPosition{}, fault.OtherLogf("checkpoint belongs to %q, this server is %s", at.Origin, sv.origin())
	}

	var from oplogPosition
	if at.Position == "" {
		from, err = positionAtTime(ctx, sv.db, at.Since)
	} else if from, err = parsePosition(at.Position); err != nil {
		err = fault.OtherLogf("%v", err)
	} else {
		err = checkHistoryPosition(ctx, sv, &from)
	}
	if err == nil {
		err = s.tryPosition(ctx, sv, &from)
	}
	return sv, from, err
}

// checkHistoryPosition checks that the server has reached a position.
func checkHistoryPosition(ctx context.Context, sv *server, at *oplogPosition) error {
	err := sv.checkReached(ctx, at)
	if restored := new(capture.LostError); errors.As(err, &restored) {
		err = fault.OtherLogf("%s", restored.Reason)
	}
	return err
}

// eventTimeSkew is how far an event's time may be behind the time of its oplog entry.
const eventTimeSkew = 10 * time.Second

// positionAtTime returns a position before everything committed at or after since. A stream
// on a young replica set opens at any time, so the start of the oplog is checked if the
// role may read it.
func positionAtTime(ctx context.Context, db *mongo.Database, since time.Time) (oplogPosition, error) {
	first, err := oldestOplogTime(ctx, db)
	if err != nil {
		return oplogPosition{}, err
	}

	if since.Before(time.Unix(int64(first.T), 0)) {
		return oplogPosition{}, fault.Lostf("%s", describeOplogStart(first))
	}

	from := bson.Timestamp{T: uint32(since.Add(-eventTimeSkew).Unix()), I: 1}
	if from.Before(first) {
		from = first
	}
	return oplogPosition{at: from}, nil
}

// oldestOplogTime returns the time of the oldest oplog entry; zero if the role may not read
// it.
func oldestOplogTime(ctx context.Context, db *mongo.Database) (first bson.Timestamp, err error) {
	raw, err := runCommand(ctx, db.Client().Database("local"), bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 1}})
	if err != nil && !denied(err) {
		return first, fmt.Errorf("read oldest oplog entry: %w", err)
	}
	first.T, first.I, _ = raw.Lookup("cursor", "firstBatch", "0", "ts").TimestampOK()
	return first, nil
}

func describeOplogStart(first bson.Timestamp) string {
	return "the oplog begins at " + time.Unix(int64(first.T), 0).UTC().Format(time.DateTime) + " UTC"
}

// LostReasons implements capture.RetentionChecker. It reads the oldest entry of the oplog.
// If the role may not, it reports no loss.
func (s *Source) LostReasons(ctx context.Context, of []store.Checkpoint) ([]string, error) {
	db, err := s.stream.db()
	if err != nil {
		return nil, err
	}

	sv, err := identify(ctx, db)
	if err != nil {
		return nil, err
	}

	first, err := oldestOplogTime(ctx, db)
	if err != nil {
		return nil, err
	}

	reasons := make([]string, len(of))
	for i := range of {
		from, err := parsePosition(of[i].Position)
		if err == nil && sv.hasOrigin(of[i].Origin) && first.After(from.at) {
			reasons[i] = describeOplogStart(first) + ", which is after it"
		}
	}

	return reasons, nil
}
