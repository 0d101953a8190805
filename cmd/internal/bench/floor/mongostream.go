package floor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

const (
	// maxEventRows is the maximum number of events in an answer of the server.
	maxEventRows = 1000
	// eventTimeout is the time that the server waits for the first event before it answers.
	eventTimeout = time.Second
)

// parseTime parses a time of the oplog: the seconds, a dot, and the number within the
// second.
func parseTime(text string) (bson.Timestamp, error) {
	seconds, number, _ := strings.Cut(text, ".")
	t, err := strconv.ParseUint(seconds, 10, 32)
	i, bad := strconv.ParseUint(number, 10, 32)
	if err != nil || bad != nil {
		return bson.Timestamp{}, fmt.Errorf("invalid oplog time %q: use SECONDS.NUMBER", text)
	}
	return bson.Timestamp{T: uint32(t), I: uint32(i)}, nil
}

// changeStream reads the inserts of the collection. The server prepares the next events
// while the last ones are emitted.
type changeStream struct {
	db      *mongo.Database
	session *mongo.Session // the server lets only the session that opened the cursor read from it
	cursor  int64
	dec     eventDecoder
	out     chunker
}

func (d *mongoDatabase) openStream(ctx context.Context, rows *ledger) (stream, error) {
	db, err := d.connect(" stream")
	if err != nil {
		return nil, err
	}
	columns := &d.layout.Columns
	s := &changeStream{db: db, out: chunker{ledger: rows}, dec: eventDecoder{collection: d.cfg.Table, id: columns.ID, payload: columns.Payload}}
	if err := s.open(ctx, d.cfg); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// open opens the stream. The pipeline matches only inserts, so that the floor does not
// receive its own updates.
func (s *changeStream) open(ctx context.Context, cfg *Config) error {
	from, err := parseTime(cfg.From)
	if err != nil {
		return err
	}

	names, err := s.db.ListCollectionNames(ctx, bson.D{{Key: "name", Value: cfg.Table}})
	if err != nil {
		return fmt.Errorf("look up collection %s: %w", cfg.Table, mongostore.Explain(err))
	}
	if len(names) == 0 {
		return fmt.Errorf("no collection %s in database %s", cfg.Table, s.db.Name())
	}
	if s.session, err = s.db.Client().StartSession(options.Session().SetCausalConsistency(false)); err != nil {
		return err
	}

	answer, err := s.runCommand(ctx, bson.D{
		{Key: "aggregate", Value: cfg.Table},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$changeStream", Value: bson.D{{Key: "startAtOperationTime", Value: from}}}},
			bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}},
			bson.D{{Key: "$project", Value: bson.D{{Key: "fullDocument." + s.dec.id, Value: 1}, {Key: "fullDocument." + s.dec.payload, Value: 1}}}},
		}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return fmt.Errorf("start stream: %w", mongostore.Explain(err))
	}

	s.cursor, _ = answer.Lookup("cursor", "id").Int64OK()
	return nil
}

func (s *changeStream) runCommand(ctx context.Context, command bson.D) (bson.Raw, error) {
	return s.db.RunCommand(mongo.NewSessionContext(ctx, s.session), command).Raw()
}

// close ends the stream, with a timeout.
func (s *changeStream) close() {
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	if s.cursor != 0 {
		_, _ = s.runCommand(ctx, bson.D{{Key: "killCursors", Value: s.dec.collection}, {Key: "cursors", Value: bson.A{s.cursor}}})
	}
	if s.session != nil {
		s.session.EndSession(ctx)
	}
	disconnect(s.db)
}

// run implements stream. A change stream contains only committed changes.
func (s *changeStream) run(ctx context.Context, maxRows int, take func([]row) error) error {
	s.out.maxRows, s.out.emit = maxRows, take
	// For a context with a deadline, the driver would send a second maxTimeMS.
	asking, end := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, end)()
	defer end()
	events, err := s.next(asking)
	for err == nil {
		var more []bson.RawValue
		if len(events) < maxEventRows {
			if err = s.emit(ctx, events); err == nil {
				events, err = s.next(asking)
			}
			continue
		}
		asked := make(chan error, 1)
		go func() {
			var err error
			more, err = s.next(asking)
			asked <- err
		}()
		err = errors.Join(s.emit(ctx, events), <-asked)
		events = more
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("read change stream: %w", mongostore.Explain(err))
}

// next waits for events. It returns none if none arrives for eventTimeout.
func (s *changeStream) next(ctx context.Context) ([]bson.RawValue, error) {
	answer, err := s.runCommand(ctx, bson.D{
		{Key: "getMore", Value: s.cursor}, {Key: "collection", Value: s.dec.collection},
		{Key: "batchSize", Value: maxEventRows}, {Key: "maxTimeMS", Value: eventTimeout.Milliseconds()},
	})
	if err != nil {
		return nil, err
	}
	if s.cursor, _ = answer.Lookup("cursor", "id").Int64OK(); s.cursor == 0 {
		return nil, errors.New("server closed it")
	}
	list, ok := answer.Lookup("cursor", "nextBatch").ArrayOK()
	if !ok {
		return nil, errors.New("unexpected server answer: no batch")
	}
	return list.Values()
}

// emit emits the rows of events. It ignores transactions, because the floor confirms nothing
// to the server.
func (s *changeStream) emit(ctx context.Context, events []bson.RawValue) error {
	if len(events) == 0 {
		return nil
	}
	s.out.begin()
	for _, e := range events {
		r, err := s.dec.row(e)
		if err != nil {
			return err
		}
		if err := s.out.add(ctx, r); err != nil {
			return err
		}
	}
	return s.out.end(ctx, 1)
}

// eventDecoder decodes the events of inserts into one collection.
type eventDecoder struct {
	collection  string
	id, payload string // fields
}

// row decodes an event. The row shares its memory.
func (d *eventDecoder) row(event bson.RawValue) (row, error) {
	e, ok := event.DocumentOK()
	if !ok {
		return row{}, errors.New("event is not a document")
	}
	doc, ok := e.Lookup("fullDocument").DocumentOK()
	if !ok {
		return row{}, fmt.Errorf("event of %s has no document: %s", d.collection, e)
	}
	id, isText := stringBytes(doc.Lookup(d.id))
	if !isText {
		return row{}, fmt.Errorf("field %s of a document of %s is not a string, which the floor requires: %s", d.id, d.collection, doc.Lookup(d.id))
	}
	payload, isText := stringBytes(doc.Lookup(d.payload))
	if !isText {
		return row{}, fmt.Errorf("payload of row %s of %s is not a string", id, d.collection)
	}
	return row{id: id, payload: payload}, nil
}

// stringBytes returns the bytes of a BSON string, which stand between its length and a zero.
func stringBytes(v bson.RawValue) (value []byte, isText bool) {
	const length = 4
	if v.Type != bson.TypeString || len(v.Value) <= length {
		return nil, false
	}
	return v.Value[length : len(v.Value)-1], true
}
