package mongo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

// minWireVersion is the wire version of MongoDB 5.0, the first with snapshot reads outside
// transactions, which the snapshot needs.
const minWireVersion = 13

// server is the replica set behind a URL, and its member that answered.
type server struct {
	database string
	setName  string // "" outside a replica set
	id       string // the replica set's id in hexadecimal; "" if the role may not read it
	router   bool   // a mongos
	wire     int64

	address   string // of the member
	primary   string // address of the primary, as the member knows it
	writable  bool
	written   bson.Timestamp // the last operation that the member has applied
	majority  time.Time      // when the last majority-committed operation was written
	writtenAt time.Time      // when the last operation was written
}

// identify asks the server for its identity and state.
func identify(ctx context.Context, db *mongo.Database) (*server, error) {
	hello, err := runAdminCommand(ctx, db, bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return nil, fmt.Errorf("identify server: %w", err)
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

// replicaSetID returns the id that a replica set got when it was initiated; "" if the role
// may not read it.
func replicaSetID(ctx context.Context, db *mongo.Database) (string, error) {
	answer, err := runAdminCommand(ctx, db, bson.D{{Key: "replSetGetConfig", Value: 1}})
	if denied(err) {
		// A role that may read the oplog can often read this too.
		find := bson.D{{Key: "find", Value: "system.replset"}, {Key: "limit", Value: 1}}
		if answer, err = runCommand(ctx, db.Client().Database("local"), find); denied(err) {
			return "", nil
		}
	}

	if err != nil {
		return "", fmt.Errorf("read replica set configuration: %w", err)
	}

	for _, path := range [][]string{{"config"}, {"cursor", "firstBatch", "0"}} {
		if id, ok := answer.Lookup(append(path, "settings", "replicaSetId")...).ObjectIDOK(); ok {
			return id.Hex(), nil
		}
	}
	return "", nil
}

// unknownID replaces the replica set's id in an origin if the role may not read it.
const unknownID = "-"

// origin identifies the log of a replica set and a database in it.
func (sv *server) origin() string {
	id := sv.id
	if id == "" {
		id = unknownID
	}
	return strings.Join([]string{"mongodb", sv.setName, id, sv.database}, "/")
}

// hasOrigin reports whether an origin is this server's. An unknown id matches any id.
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

// checkSameServer checks that the server has the origin seen by Open, and has everything
// that was read.
func (sv *server) checkSameServer(ctx context.Context, db *mongo.Database, was *server, from *oplogPosition) error {
	if !sv.hasOrigin(was.origin()) {
		return fault.Lostf("server is %s, was %s", sv.origin(), was.origin())
	}
	return sv.checkReached(ctx, db, from)
}

// checkReached checks that the server has reached the position read from it. A stream sends
// only majority-committed events, and a newly elected primary has all of them.
func (sv *server) checkReached(ctx context.Context, db *mongo.Database, from *oplogPosition) error {
	if !sv.isBehind(from) {
		return nil
	}

	// A primary that was partitioned may not know that it was replaced. It cannot complete
	// a linearizable read; see
	// https://www.mongodb.com/docs/v6.0/reference/read-concern-linearizable/.
	if _, err := runCommand(ctx, db, bson.D{
		{Key: "find", Value: markCollection}, {Key: "filter", Value: bson.D{{Key: "_id", Value: 0}}}, {Key: "limit", Value: 1},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}},
	}); err != nil {
		return fmt.Errorf("verify that server %s is the primary: %w", sv.address, err)
	}

	now, err := identify(ctx, db)
	if err != nil {
		return err
	}

	if now.isBehind(from) {
		return fault.Lostf("oplog ends at %d.%d but was read up to %s: the server was restored", now.written.T, now.written.I, from.describe())
	}

	return nil
}

// isBehind reports whether the server has not reached a position.
func (sv *server) isBehind(from *oplogPosition) bool {
	return !sv.written.IsZero() && from.previousTime().After(sv.written)
}

// checkPrimary checks that the server accepts writes, which markers need.
func (sv *server) checkPrimary() error {
	if sv.writable {
		return nil
	}
	return fmt.Errorf("server %s is not the primary, %q is; if this persists, name the whole replica set in the URL: replicaSet=%s in place of directConnection", sv.address, sv.primary, sv.setName)
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
	errOnlyReplicaSets      = 40573 // $changeStream on any other server
)

// hasCode reports whether an error is a server error with one of the given codes.
func hasCode(err error, codes ...int) bool {
	return slices.ContainsFunc(mongo.ErrorCodes(err), func(code int) bool { return slices.Contains(codes, code) })
}

// denied reports whether the server refused a command for lack of privileges.
func denied(err error) bool { return hasCode(err, errUnauthorized) }
