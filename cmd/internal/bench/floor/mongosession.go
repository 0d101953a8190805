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

	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// mongoDatabase is a MongoDB database.
type mongoDatabase struct {
	cfg    *Config
	layout store.Layout
}

// connect opens a new client. The database is that of the URL.
func (d *mongoDatabase) connect(what string) (*mongo.Database, error) {
	opts, name, err := mongostore.ParseURL(d.cfg.URL, "sluicebox bench floor"+what)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", strings.Join(opts.Hosts, ", "), mongostore.Explain(err))
	}
	return client.Database(name), nil
}

// disconnect closes the client of a database, with a timeout.
func disconnect(db *mongo.Database) {
	ctx, cancel := context.WithTimeout(context.Background(), store.CloseTimeout)
	defer cancel()
	_ = db.Client().Disconnect(ctx)
}

// mongoSession writes with raw commands. The driver would add fields to an update, above all
// the transaction number of a retryable write, which costs the server another write.
type mongoSession struct {
	db  *mongo.Database
	ctx context.Context // see bind

	collection string
	layout     *store.Layout
	verb, list string // of the command: update and updates, or delete and deletes
	status     []any  // statuses to match, all if empty
	set        any    // status to set, nil to delete
	ids        []byte // reused buffer
}

// openClaims opens the session that claims documents.
func (d *mongoDatabase) openClaims(ctx context.Context) (claimer, error) {
	return d.openSession(ctx, d.value(store.Pending), d.value(store.Processing))
}

// openCompletions opens the session that completes documents.
func (d *mongoDatabase) openCompletions(ctx context.Context, pending bool) (session, error) {
	var from, to any
	if pending {
		from = d.value(store.Pending)
	}
	if !d.layout.DeleteDelivered {
		to = d.value(store.Completed)
	}
	return d.openSession(ctx, from, to)
}

// value returns a status as stored in documents.
func (d *mongoDatabase) value(s store.Status) any {
	if d.layout.State == store.StateNumbers {
		return d.layout.Numbers[s]
	}
	return d.layout.Words[s]
}

func (d *mongoDatabase) openSession(ctx context.Context, from, to any) (*mongoSession, error) {
	db, err := d.connect("")
	if err != nil {
		return nil, err
	}
	if err := db.Client().Ping(ctx, nil); err != nil {
		disconnect(db)
		return nil, fmt.Errorf("connect: %w", mongostore.Explain(err))
	}
	s := &mongoSession{db: db, collection: d.cfg.Table, layout: &d.layout, verb: "update", list: "updates", set: to}
	if from != nil {
		s.status = []any{from}
	}
	if to == nil {
		s.verb, s.list = "delete", "deletes"
	}
	return s, nil
}

func (s *mongoSession) close() { disconnect(s.db) }

// bind implements session. The driver takes a context with each command.
func (s *mongoSession) bind(ctx context.Context) (unbind func()) {
	s.ctx = ctx
	return func() {}
}

// writeConcern returns the write concern of each write, majority and journal, as for the
// relay's writes.
func writeConcern() bson.E {
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "j", Value: true}}}
}

// write implements session. It runs one command for one document or a list of documents.
func (s *mongoSession) write(rows []row) (int, error) {
	one := bson.D{{Key: "q", Value: s.idFilter(rows, s.status)}}
	if s.set == nil {
		one = append(one, bson.E{Key: "limit", Value: 0}) // no limit
	} else {
		one = append(one, bson.E{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{
			{Key: s.layout.Columns.Status, Value: s.set}, {Key: s.layout.Columns.Claimed, Value: bson.NewDateTimeFromTime(time.Now())},
		}}}}, bson.E{Key: "multi", Value: len(rows) > 1})
	}

	answer, err := s.db.RunCommand(s.ctx, bson.D{{Key: s.verb, Value: s.collection}, {Key: s.list, Value: bson.A{one}}, writeConcern()}).Raw()
	if err != nil {
		return 0, mongostore.Explain(err)
	}

	n, _ := answer.Lookup("n").AsInt64OK()
	for _, field := range []string{"writeErrors", "writeConcernError"} { // they are not errors of the command
		if failure := answer.Lookup(field); !failure.IsZero() {
			return int(n), fmt.Errorf("%s: %s", field, failure)
		}
	}
	return int(n), nil
}

// idFilter returns the filter for documents with these ids and statuses.
func (s *mongoSession) idFilter(rows []row, status []any) bson.D {
	filter := bson.D{{Key: s.layout.Columns.ID, Value: string(rows[0].id)}}
	if len(rows) > 1 {
		s.ids = appendList(s.ids[:0], rows)
		filter[0].Value = bson.D{{Key: "$in", Value: bson.RawValue{Type: bson.TypeArray, Value: s.ids}}}
	}
	for _, is := range status {
		filter = append(filter, bson.E{Key: s.layout.Columns.Status, Value: is})
	}
	return filter
}

// appendList appends the ids as a BSON array of strings (https://bsonspec.org/spec.html).
func appendList(to []byte, rows []row) []byte {
	to = append(to, 0, 0, 0, 0) // its length
	for i := range rows {
		id := rows[i].id
		to = append(to, byte(bson.TypeString))
		to = strconv.AppendInt(to, int64(i), 10)
		to = append(to, 0)
		to = appendLength(to, len(id)+1)
		to = append(append(to, id...), 0)
	}
	to = append(to, 0)
	appendLength(to[:0], len(to))
	return to
}

// appendLength appends a length as a little-endian int32.
func appendLength(to []byte, n int) []byte {
	return append(to, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
}

// claimedOf implements claimer.
func (s *mongoSession) claimedOf(rows []row) (map[string]bool, error) {
	field := s.layout.Columns.ID
	answer, err := s.db.RunCommand(s.ctx, bson.D{
		{Key: "find", Value: s.collection}, {Key: "filter", Value: s.idFilter(rows, []any{s.set})},
		{Key: "projection", Value: bson.D{{Key: field, Value: 1}}},
		{Key: "batchSize", Value: len(rows)}, {Key: "singleBatch", Value: true},
	}).Raw()
	if err != nil {
		return nil, mongostore.Explain(err)
	}

	found, ok := answer.Lookup("cursor", "firstBatch").ArrayOK()
	if !ok {
		return nil, errors.New("unexpected server answer: no batch")
	}

	values, err := found.Values()
	if err != nil {
		return nil, err
	}

	ids := make(map[string]bool, len(values))
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok {
			id, _ := doc.Lookup(field).StringValueOK()
			ids[id] = true
		}
	}
	return ids, nil
}
