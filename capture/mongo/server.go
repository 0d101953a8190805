package mongo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// commandTimeout bounds every command that the server should answer at once.
const commandTimeout = 10 * time.Second

// lazyClient is a client for the database, logged in as one user. It connects on first use.
type lazyClient struct {
	url         string
	application string

	mu       sync.Mutex
	client   *mongo.Client
	database string
	user     string // "" without a login
}

// db returns the URL's database.
func (d *lazyClient) db() (*mongo.Database, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.client == nil {
		opts, database, err := mongostore.ParseURL(d.url, d.application)
		if err != nil {
			return nil, err
		}
		client, err := mongo.Connect(opts)
		if err != nil {
			return nil, err
		}
		d.client, d.database = client, database
		if opts.Auth != nil {
			d.user = opts.Auth.Username
		}
	}

	return d.client.Database(d.database), nil
}

// close ends the client's connections. Nothing depends on whether the server answers.
func (d *lazyClient) close() {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.client.Disconnect(ctx)
	d.client = nil
}

// runCommand runs a command in a database and returns the answer.
func runCommand(ctx context.Context, db *mongo.Database, command bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return db.RunCommand(ctx, command).Raw()
}

// runAdminCommand runs a command in the database admin.
func runAdminCommand(ctx context.Context, db *mongo.Database, command bson.D) (bson.Raw, error) {
	return runCommand(ctx, db.Client().Database("admin"), command)
}

// lookupString returns a string field of an answer; "" if it is missing.
func lookupString(answer bson.Raw, path ...string) string {
	s, _ := answer.Lookup(path...).StringValueOK()
	return s
}

// minWireVersion is the wire version of MongoDB 5.0, the first with snapshot reads outside
// transactions, which the snapshot needs.
const minWireVersion = 13

// server is the replica set behind a URL, and its member that answered.
type server struct {
	hello
	db       *mongo.Database
	database string // the name of db
	id       string // the replica set's id in hexadecimal; "" if the role may not read it
}

// hello is a member's answer to hello.
type hello struct {
	SetName  string `bson:"setName"` // "" outside a replica set
	Msg      string `bson:"msg"`     // "isdbgrid" on a mongos
	Wire     int64  `bson:"maxWireVersion"`
	Address  string `bson:"me"`
	Primary  string `bson:"primary"` // as the member knows it
	Writable bool   `bson:"isWritablePrimary"`
	Last     struct {
		Op struct {
			At bson.Timestamp `bson:"ts"` // of the last operation that the member has applied
		} `bson:"opTime"`
		WrittenAt  time.Time `bson:"lastWriteDate"`     // when it was written
		MajorityAt time.Time `bson:"majorityWriteDate"` // when the last majority-committed one was written
	} `bson:"lastWrite"`
}

// written returns the time of the last operation that the member has applied.
func (h *hello) written() bson.Timestamp { return h.Last.Op.At }

// identify asks the server for its identity and state.
func identify(ctx context.Context, db *mongo.Database) (*server, error) {
	sv := &server{db: db, database: db.Name()}
	answer, err := runAdminCommand(ctx, db, bson.D{{Key: "hello", Value: 1}})
	if err == nil {
		err = bson.Unmarshal(answer, &sv.hello)
	}
	if err != nil {
		return nil, fmt.Errorf("identify server: %w", err)
	}
	if sv.SetName != "" {
		sv.id, err = replicaSetID(ctx, db)
	}
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
	return strings.Join([]string{"mongodb", sv.SetName, id, sv.database}, "/")
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

// checkReached checks that the server has reached the position read from it. A stream sends
// only majority-committed events, and a newly elected primary has all of them.
func (sv *server) checkReached(ctx context.Context, from *oplogPosition) error {
	if !sv.isBehind(from) {
		return nil
	}

	// A primary that was partitioned may not know that it was replaced. It cannot complete
	// a linearizable read; see
	// https://www.mongodb.com/docs/v6.0/reference/read-concern-linearizable/.
	if _, err := runCommand(ctx, sv.db, bson.D{
		{Key: "find", Value: markCollection}, {Key: "filter", Value: bson.D{{Key: "_id", Value: 0}}}, {Key: "limit", Value: 1},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}},
	}); err != nil {
		return fmt.Errorf("verify that server %s is the primary: %w", sv.Address, err)
	}

	now, err := identify(ctx, sv.db)
	if err != nil {
		return err
	}
	if now.isBehind(from) {
		return fault.Lostf("oplog ends at %d.%d but was read up to %s: the server was restored", now.written().T, now.written().I, from.describe())
	}

	return nil
}

// isBehind reports whether the server has not reached a position.
func (sv *server) isBehind(from *oplogPosition) bool {
	return !sv.written().IsZero() && from.previousTime().After(sv.written())
}

// checkPrimary checks that the server accepts writes, which markers need.
func (sv *server) checkPrimary() error {
	if sv.Writable {
		return nil
	}
	return fmt.Errorf("server %s is not the primary, %q is; if this persists, name the whole replica set in the URL: replicaSet=%s in place of directConnection", sv.Address, sv.Primary, sv.SetName)
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
