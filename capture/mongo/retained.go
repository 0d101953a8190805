package mongo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture"
)

// maxUnmeasured is how long the relay waits for an acknowledgement if its role may not read
// the oplog, and so the retained size is unknown. After that it reads on.
const maxUnmeasured = 10 * time.Minute

// Retained measures the oplog after the acknowledged position, or after the position of
// Open before the first acknowledgement. That is the log the relay still has to read, even
// if the server has truncated a part of it. Limit is the maximum size of the server's
// oplog.
//
// The stream's role must be allowed to read local.oplog.rs. Otherwise all values are zero,
// and after 10 minutes without an acknowledgement the limit counts as reached, so that the
// relay reads on and spills.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	acked := s.acks.Last()
	if acked == nil {
		return capture.RetainedLog{}, nil
	}

	db, err := s.stream.db()
	if err != nil {
		return capture.RetainedLog{}, err
	}

	retained, err := s.oplog.measure(ctx, db, acked.Parsed.previousTime())
	if denied(err) {
		if time.Since(acked.At) < maxUnmeasured {
			return capture.RetainedLog{}, nil
		}
		return capture.RetainedLog{Bytes: 1, Limit: 1}, nil
	}

	if err != nil {
		return capture.RetainedLog{}, fmt.Errorf("read oplog size: %w", err)
	}

	return retained, nil
}

const (
	// maxScanned is how many oplog entries one scan reads, which takes some 50 ms.
	maxScanned = 20000
	// maxSums is the maximum number of stored sums.
	maxSums = 1000
	// limitTTL is how long the oplog's maximum size is cached (replSetResizeOplog changes
	// it).
	limitTTL = time.Minute
)

// oplogMeter measures the size of the oplog after a time. The server does not report it, so
// the meter adds up the entry sizes, each once.
type oplogMeter struct {
	mu      sync.Mutex
	sums    []cumulativeSize // ascending; the first is the start
	limit   int64
	limitAt time.Time
}

// cumulativeSize is the size in bytes from the meter's start up to a time, inclusive.
type cumulativeSize struct {
	at    bson.Timestamp
	bytes int64
}

// reset discards all sums and starts at a time.
func (l *oplogMeter) reset(at bson.Timestamp) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.sums = []cumulativeSize{{at: at}}
}

// measure returns the size of the oplog after a time, which is not before that of the last
// call. The start moves there.
func (l *oplogMeter) measure(ctx context.Context, db *mongo.Database, from bson.Timestamp) (capture.RetainedLog, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if time.Since(l.limitAt) > limitTTL {
		_, limit, err := oplogSize(ctx, db)
		if err != nil {
			return capture.RetainedLog{}, err
		}
		l.limit, l.limitAt = limit, time.Now()
	}

	oplog := db.Client().Database("local")
	if err := l.catchUp(ctx, oplog); err != nil {
		return capture.RetainedLog{}, err
	}

	l.thin()
	last := l.sums[len(l.sums)-1]
	for len(l.sums) > 1 && !l.sums[1].at.After(from) {
		l.sums = l.sums[1:]
	}

	if len(l.sums) > 1 && l.sums[0].at.Before(from) {
		part, _, err := scanOplog(ctx, oplog, from, l.sums[1].at)
		if err != nil {
			return capture.RetainedLog{}, err
		}
		l.sums[0] = cumulativeSize{at: from, bytes: l.sums[1].bytes - part.bytes}
	}
	return capture.RetainedLog{Bytes: last.bytes - l.sums[0].bytes, Limit: l.limit}, nil
}

// thin drops every other sum if there are too many, which happens while nothing is
// acknowledged.
func (l *oplogMeter) thin() {
	n := len(l.sums)
	if n <= maxSums {
		return
	}
	rest := l.sums[:0]
	for i, s := range l.sums {
		if i%2 == 0 || i == n-1 {
			rest = append(rest, s)
		}
	}
	l.sums = rest
}

// catchUp adds the entries written since the last call. If there are more than it scans in
// one call, results are too small until it has caught up.
func (l *oplogMeter) catchUp(ctx context.Context, oplog *mongo.Database) error {
	const maxScans = 5
	for range maxScans {
		last := l.sums[len(l.sums)-1]
		more, complete, err := scanOplog(ctx, oplog, last.at, bson.Timestamp{T: math.MaxUint32})
		if err != nil {
			return err
		}
		if more.bytes > 0 {
			l.sums = append(l.sums, cumulativeSize{at: more.at, bytes: last.bytes + more.bytes})
		}
		if complete {
			return nil
		}
	}
	return nil
}

// scanOplog adds up the sizes of the oplog entries after a time and up to another, at most
// maxScanned of them, and reports whether these were all.
func scanOplog(ctx context.Context, local *mongo.Database, after, upTo bson.Timestamp) (s cumulativeSize, complete bool, err error) {
	raw, err := runCommand(ctx, local, bson.D{
		{Key: "aggregate", Value: "oplog.rs"},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$match", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lte", Value: upTo}}}}}},
			bson.D{{Key: "$limit", Value: maxScanned}},
			bson.D{{Key: "$group", Value: bson.D{
				{Key: "_id", Value: nil},
				{Key: "bytes", Value: bson.D{{Key: "$sum", Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}}}},
				{Key: "at", Value: bson.D{{Key: "$max", Value: "$ts"}}},
				{Key: "entries", Value: bson.D{{Key: "$sum", Value: 1}}},
			}}},
		}},
		{Key: "cursor", Value: bson.D{}},
	})
	if err != nil {
		return s, false, err
	}

	found, ok := raw.Lookup("cursor", "firstBatch", "0").DocumentOK()
	if !ok {
		return cumulativeSize{at: after}, true, nil
	}

	s.bytes, _ = found.Lookup("bytes").AsInt64OK()
	entries, _ := found.Lookup("entries").AsInt64OK()
	if s.at.T, s.at.I, ok = found.Lookup("at").TimestampOK(); !ok {
		return s, false, errors.New("unexpected server answer: no time")
	}

	return s, entries < maxScanned, nil
}

// oplogSize returns the current and the maximum size of the oplog, in bytes.
func oplogSize(ctx context.Context, db *mongo.Database) (size, limit int64, err error) {
	raw, err := runCommand(ctx, db.Client().Database("local"), bson.D{{Key: "collStats", Value: "oplog.rs"}})
	if err != nil {
		return 0, 0, err
	}
	size, _ = raw.Lookup("size").AsInt64OK()
	limit, _ = raw.Lookup("maxSize").AsInt64OK()
	return size, limit, nil
}
