package mongo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture"
)

// minWireVersion is the wire version of MongoDB 5.0, the first that reads at a snapshot
// outside of a transaction, as the cut does.
const minWireVersion = 13

// server is the replica set behind a URL, and its member that answers.
type server struct {
	database string
	setName  string // the set's name; "" if it is none
	id       string // the set's id in hexadecimal; "" if the role may not see it
	router   bool   // it is a mongos
	wire     int64

	address   string // of the member
	primary   string // of the one that takes writes, as the member knows
	writable  bool
	written   bson.Timestamp // the last operation that the member has applied
	majority  time.Time      // when the last operation that a majority has was written
	writtenAt time.Time      // and the last one of all
}

// identify asks who answers.
func identify(ctx context.Context, db *mongo.Database) (*server, error) {
	hello, err := runAdminCommand(ctx, db, bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return nil, fmt.Errorf("ask the server who it is: %w", err)
	}
	sv := &server{
		database: db.Name(), setName: lookupString(hello, "setName"), router: lookupString(hello, "msg") == "isdbgrid",
		address: lookupString(hello, "me"), primary: lookupString(hello, "primary"),
	}
	sv.wire, _ = hello.Lookup("maxWireVersion").AsInt64OK()
	sv.writable, _ = hello.Lookup("isWritablePrimary").BooleanOK()
	sv.written.T, sv.written.I, _ = hello.Lookup("lastWrite", "opTime", "ts").TimestampOK()
	sv.writtenAt, _ = hello.Lookup("lastWrite", "lastWriteDate").TimeOK()
	sv.majority, _ = hello.Lookup("lastWrite", "majorityWriteDate").TimeOK()
	if sv.setName == "" {
		return sv, nil
	}
	sv.id, err = replicaSetID(ctx, db)
	return sv, err
}

// replicaSetID returns the id that a replica set was given when it was initiated, "" if the
// role may not see it.
func replicaSetID(ctx context.Context, db *mongo.Database) (string, error) {
	answer, err := runAdminCommand(ctx, db, bson.D{{Key: "replSetGetConfig", Value: 1}})
	if denied(err) {
		// Who may read the oplog often may read this too.
		find := bson.D{{Key: "find", Value: "system.replset"}, {Key: "limit", Value: 1}}
		if answer, err = runCommand(ctx, db.Client().Database("local"), find); denied(err) {
			return "", nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("ask for the replica set's configuration: %w", err)
	}
	for _, path := range [][]string{{"config"}, {"cursor", "firstBatch", "0"}} {
		if id, ok := answer.Lookup(append(path, "settings", "replicaSetId")...).ObjectIDOK(); ok {
			return id.Hex(), nil
		}
	}
	return "", nil
}

// unknownID stands in an origin for a set's id that the role may not see.
const unknownID = "-"

// origin names the log of a replica set, and of a database in it.
func (sv *server) origin() string {
	id := sv.id
	if id == "" {
		id = unknownID
	}
	return strings.Join([]string{"mongodb", sv.setName, id, sv.database}, "/")
}

// hasOrigin reports whether an origin is the server's. An id that could not be seen
// once is no other one.
func (sv *server) hasOrigin(origin string) bool {
	a, b := strings.Split(origin, "/"), strings.Split(sv.origin(), "/")
	if len(a) != len(b) {
		return false
	}
	for i, part := range a {
		if part != b[i] && (i != 2 || part != unknownID && b[i] != unknownID) {
			return false
		}
	}
	return true
}

// checkSameServer makes sure that a server is the one that Open saw and has what was read.
func (sv *server) checkSameServer(ctx context.Context, db *mongo.Database, was *server, from *oplogPosition) error {
	if !sv.hasOrigin(was.origin()) {
		return lostErrorf("the server is %s, it was %s", sv.origin(), was.origin())
	}
	return sv.checkReached(ctx, db, from)
}

// checkReached makes sure that the server has got as far as what was read from it. What
// a stream sends a majority has, and whoever is elected then has it too.
func (sv *server) checkReached(ctx context.Context, db *mongo.Database, from *oplogPosition) error {
	if !sv.isBehind(from) {
		return nil
	}
	// A primary that was away may not know yet that another took its place. It can make
	// no such read; see https://www.mongodb.com/docs/v6.0/reference/read-concern-linearizable/.
	if _, err := runCommand(ctx, db, bson.D{
		{Key: "find", Value: markCollection}, {Key: "filter", Value: bson.D{{Key: "_id", Value: 0}}}, {Key: "limit", Value: 1},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}},
	}); err != nil {
		return fmt.Errorf("make sure that the server at %s is the primary: %w", sv.address, err)
	}
	now, err := identify(ctx, db)
	if err != nil {
		return err
	}
	if now.isBehind(from) {
		return lostErrorf("the server's oplog ends at %d.%d, it was read up to %s: it was restored", now.written.T, now.written.I, from.describe())
	}
	return nil
}

// isBehind reports whether a place is behind all that the server has.
func (sv *server) isBehind(from *oplogPosition) bool {
	return !sv.written.IsZero() && from.previousTime().After(sv.written)
}

// checkPrimary makes sure that the server takes writes: markers are some.
func (sv *server) checkPrimary() error {
	if sv.writable {
		return nil
	}
	return fmt.Errorf("the server at %s is not the primary, %q is; if that stays so, name the whole set in the URL: replicaSet=%s in place of directConnection", sv.address, sv.primary, sv.setName)
}

func lostErrorf(format string, args ...any) error {
	return &capture.LostError{Reason: fmt.Sprintf(format, args...)}
}

// Errors of the server
// (https://github.com/mongodb/mongo/blob/r6.0.5/src/mongo/base/error_codes.yml).
const (
	errUnauthorized         = 13
	errAuthenticationFailed = 18
	errCursorNotFound       = 43
	errInvalidResumeToken   = 260
	errFatal                = 280   // ChangeStreamFatalError
	errHistoryLost          = 286   // ChangeStreamHistoryLost
	errTooLarge             = 10334 // BSONObjectTooLarge
	errOnlyReplicaSets      = 40573 // $changeStream anywhere else
)

// hasCode reports whether the server has answered with an error of one of some numbers.
func hasCode(err error, codes ...int) bool {
	return slices.ContainsFunc(mongo.ErrorCodes(err), func(code int) bool { return slices.Contains(codes, code) })
}

// denied reports whether the server says that the role may not.
func denied(err error) bool { return hasCode(err, errUnauthorized) }
