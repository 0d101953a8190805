package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/sessions"
	"github.com/sluicebox/sluicebox/store/tlserror"
)

// initHint is the remedy for missing collections.
const initHint = "run `sluicebox init`"

// The server's error codes (src/mongo/base/error_codes.yml, as the manual links it).
const (
	codeBadValue            = 2
	codeUnauthorized        = 13
	codeAuthentication      = 18
	codeIllegalOperation    = 20
	codeNamespaceNotFound   = 26
	codeNamespaceExists     = 48
	codeTimeLimit           = 50
	codeWriteConflict       = 112
	codeValidation          = 121
	codeKeyTooLong          = 17280
	codeSnapshotTooOld      = 239
	codeSnapshotUnavailable = 246
	codeDuplicate           = 11000
	codeTooLarge            = 10334
	codeTooLargeAfter       = 17419
	codeTooLargeAfterUpsert = 17420
	codePathViable          = 28 // a path through a value that is not a subdocument
	codeAtlas               = 8000
)

// hasCode reports whether an error is a server error with one of the given codes.
func hasCode(err error, codes ...int) bool {
	if err == nil {
		return false
	}
	return slices.ContainsFunc(mongo.ErrorCodes(err), func(code int) bool { return slices.Contains(codes, code) })
}

// hasLabel reports whether the server or the driver gave an error a label.
func hasLabel(err error, label string) bool {
	var by mongo.LabeledError
	return errors.As(err, &by) && by.HasErrorLabel(label)
}

// isWriteConflict reports whether a transaction met a document that another session has
// changed since it began, or is changing.
func isWriteConflict(err error) bool { return hasCode(err, codeWriteConflict) }

// isServerError reports whether the server answered with an error.
func isServerError(err error) bool {
	var answer mongo.CommandError
	return errors.Is(err, errSomeUpdatesFailed) || errors.As(err, new(mongo.WriteException)) || errors.As(err, &answer) && answer.Code != 0
}

// Explain turns an error that a retry does not fix into a *store.SetupError with a remedy.
// It returns other errors unchanged.
func Explain(err error) error {
	var setup *store.SetupError
	if err == nil || errors.As(err, &setup) {
		return err
	}

	explain := func(problem, remedy string) error {
		return &explained{store.SetupError{Problem: problem + ": " + shortErrorText(err), Remedy: remedy}, err}
	}
	text := err.Error()
	switch {
	case hasCode(err, codeAuthentication, codeAtlas) || strings.Contains(text, "auth error:"):
		return explain("database refused the login", "check the user and password of the URL, and authSource: the database that defines the user, often admin")
	case hasCode(err, codeUnauthorized):
		return explain("user lacks a privilege", "run `sluicebox doctor` and grant the privileges that it lists")
	case hasCode(err, codeSnapshotTooOld):
		return explain("snapshot expired on the server: the read took too long",
			"// as an administrator\ndb.adminCommand({setParameter: 1, minSnapshotHistoryWindowInSeconds: 3600});")
	case hasCode(err, codeIllegalOperation) && strings.Contains(text, "Transaction numbers"):
		return explain("server is not a member of a replica set and has no transactions", replicaSet)
	case strings.Contains(text, "x509:"):
		return explain("database certificate is not trusted",
			tlserror.Advice(text, tlsKeys()))
	}

	return tlserror.Wrap(err, tlsKeys())
}

// tlsKeys are the parameters of the URL for TLS.
func tlsKeys() tlserror.Keys {
	return tlserror.Keys{CA: "tlsCAFile=FILE", Certificate: "tlsCertificateKeyFile=FILE"}
}

// shortErrorText returns the text of an error without the command that the server repeats
// in it.
func shortErrorText(err error) string {
	text, _, _ := strings.Cut(err.Error(), " to execute command {")
	return text
}

// replicaSet is the remedy for a server without transactions.
const replicaSet = "start mongod with --replSet rs0 (replication.replSetName), and run rs.initiate() once; one member is enough"

// explained is an error with a remedy. It wraps the server's error.
type explained struct {
	store.SetupError
	err error
}

// Unwrap makes it a *store.SetupError.
func (e *explained) Unwrap() []error { return []error{&e.SetupError, e.err} }

// Unreachable reports whether an error means that no server answered, the connection was
// lost, or there is no primary at present, so a retry may succeed.
func Unreachable(err error) bool {
	var setup *store.SetupError
	if err == nil || errors.As(Explain(err), &setup) || errors.Is(err, store.ErrNotLeader) || errors.Is(err, sessions.ErrClosed) {
		return false
	}
	var answer mongo.ServerError
	if errors.As(err, &answer) {
		return mongo.IsNetworkError(err) || mongo.IsTimeout(err) || hasLabel(err, "TransientTransactionError") ||
			hasLabel(err, "RetryableWriteError") || hasLabel(err, "UnknownTransactionCommitResult") || hasCode(err, transientCodes()...)
	}
	return !errors.Is(err, context.Canceled)
}

// transientCodes returns the codes of a server that is shutting down, changing its state,
// or overloaded.
func transientCodes() []int {
	return []int{
		6,     // HostUnreachable
		7,     // HostNotFound
		89,    // NetworkTimeout
		91,    // ShutdownInProgress
		189,   // PrimarySteppedDown
		262,   // ExceededTimeLimit
		9001,  // SocketException
		10107, // NotWritablePrimary
		11600, // InterruptedAtShutdown
		11602, // InterruptedDueToReplStateChange
		13435, // NotPrimaryNoSecondaryOk
		13436, // NotPrimaryOrSecondary
		64,    // WriteConcernFailed
		100,   // UnsatisfiableWriteConcern: members are down
		codeTimeLimit, codeWriteConflict, codeSnapshotUnavailable,
	}
}

// asRefused turns the database's refusal of a document into a *store.RefusedError: a
// validator, a unique index, a document that grows too large, or a document that another
// session keeps changing. It passes other errors to Explain.
func asRefused(err error) error {
	var refused *store.RefusedError
	var unknown *commitError
	switch {
	case err == nil || errors.As(err, &refused) || errors.As(err, &unknown) || errors.As(err, new(*leaderBusyError)):
		return err
	case hasCode(err, codeTooLarge, codeTooLargeAfter, codeTooLargeAfterUpsert):
		return &store.RefusedError{Err: fmt.Errorf("document too large for its status (limit 16 MiB); reduce its payload: %w", err)}
	case hasCode(err, codeWriteConflict, codeValidation, codeDuplicate, codeBadValue, codeKeyTooLong, codePathViable):
		return &store.RefusedError{Err: err}
	}
	return Explain(err)
}

// asOwnRefused is asRefused for the relay's collections, which no other program changes.
func asOwnRefused(err error) error {
	if hasCode(err, codeTooLarge, codeTooLargeAfter, codeTooLargeAfterUpsert, codeValidation, codeBadValue, codeKeyTooLong) {
		return &store.RefusedError{Err: err}
	}
	return Explain(err)
}
