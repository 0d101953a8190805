package mongo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// explain classifies a server error of a stream that resumed at a position.
func (s *Source) explain(ctx context.Context, db *mongo.Database, from *oplogPosition, err error) error {
	var answer mongo.CommandError
	if ctx.Err() != nil || !errors.As(err, &answer) {
		return err
	}

	switch {
	case hasCode(err, errHistoryLost):
		return fault.Lostf("oplog no longer reaches back to %s: %s", from.describe(), answer.Message)
	case hasCode(err, errFatal):
		return fault.Lostf("change stream cannot resume at %s: %s", from.describe(), answer.Message)
	case hasCode(err, errInvalidResumeToken):
		return fault.Lostf("server does not know the resume token of %s: %s", from.describe(), answer.Message)
	case hasCode(err, errTooLarge):
		return fault.Lostf("event after %s exceeds the server's size limit even without its payload: %s", from.describe(), answer.Message)
	case denied(err):
		short, _, _ := strings.Cut(answer.Message, " to execute command") // the rest repeats the command
		return s.streamGrantFault(ctx, db, short).Err()
	case hasCode(err, errAuthenticationFailed):
		return s.loginFault(answer.Message).Err()
	case hasCode(err, errOnlyReplicaSets):
		return noReplicaSetFault(answer.Message).Err()
	}

	err = fmt.Errorf("read change stream: %w", err)
	if !mongostore.Unreachable(err) && !isCursorEnd(err) && !answer.HasErrorLabel("ResumableChangeStreamError") {
		return &fault.UnreadableLogError{Err: err} // may repeat forever at this position
	}

	return err
}

// isCursorEnd reports whether the server ended the cursor, so that a new one can resume.
func isCursorEnd(err error) bool {
	const capped, planKilled, cursorKilled, interrupted = 136, 175, 237, 11601
	return hasCode(err, errCursorNotFound, capped, planKilled, cursorKilled, interrupted)
}

// describe returns the position's time for error texts, without the long token.
func (p *oplogPosition) describe() string {
	return fmt.Sprintf("%d.%d (%s)", p.at.T, p.at.I, time.Unix(int64(p.at.T), 0).UTC().Format(time.DateTime+" MST"))
}

// streamGrantFault is the fault of a role that may not read the database's change stream.
func (s *Source) streamGrantFault(ctx context.Context, db *mongo.Database, reason string) *fault.Fault {
	return &fault.Fault{
		Subject: "stream", Problem: fmt.Sprintf("role %s may not read the change stream of database %s: %s", s.stream.user, db.Name(), reason),
		Statements: []string{grant(ctx, db, s.stream.user, "read", db.Name())}, Instructions: "in mongosh, as an administrator",
	}
}

func (s *Source) loginFault(reason string) *fault.Fault {
	return &fault.Fault{
		Subject: "stream", Problem: fmt.Sprintf("role %s may not log in: %s", s.stream.user, reason),
		Instructions: "check the user and password of the URL, and authSource: the database that defines the user",
	}
}

// grant returns the statement that grants a user a role on a database.
func grant(ctx context.Context, db *mongo.Database, user, role, on string) string {
	return fmt.Sprintf("db.getSiblingDB(%q).grantRolesToUser(%q, [{role: %q, db: %q}]);", userDatabase(ctx, db, user), user, role, on)
}

// userDatabase returns the database in which the current user is defined.
func userDatabase(ctx context.Context, db *mongo.Database, user string) string {
	answer, err := runAdminCommand(ctx, db, bson.D{{Key: "connectionStatus", Value: 1}})
	if err == nil && lookupString(answer, "authInfo", "authenticatedUsers", "0", "user") == user {
		if name := lookupString(answer, "authInfo", "authenticatedUsers", "0", "db"); name != "" {
			return name
		}
	}
	return "admin"
}

// noReplicaSetFault is the fault of a server without change streams.
func noReplicaSetFault(problem string) *fault.Fault {
	return &fault.Fault{
		Subject: "server", Problem: problem, Statements: []string{"rs.initiate();"},
		Instructions: "in mongosh, after mongod was started with --replSet and a name (replication.replSetName); one member is enough",
	}
}

// streamFault returns the fault that keeps the relay from reading a change stream of this
// server; nil if there is none.
func (sv *server) streamFault() *fault.Fault {
	switch {
	case sv.Msg == "isdbgrid":
		return &fault.Fault{
			Subject: "server", Problem: "server is a mongos: change streams of sharded clusters are not supported", Instructions: "poll",
		}
	case sv.SetName == "":
		return noReplicaSetFault("server is not a member of a replica set: without an oplog it has no change streams")
	case sv.Wire < minWireVersion:
		return &fault.Fault{Subject: "server", Problem: "server is older than MongoDB 5.0", Instructions: "upgrade it, or poll"}
	}
	return nil
}
