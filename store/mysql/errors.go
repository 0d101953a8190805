package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
)

// initHint is the remedy for missing or outdated tables of the relay.
const initHint = "run `sluicebox init`"

// code returns the number of a server error; 0 for any other error.
func code(err error) int {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return int(e.Number)
	}
	return 0
}

// state returns the SQLSTATE of a server error; "" for any other error.
func state(err error) string {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return string(e.SQLState[:])
	}
	return ""
}

// isLockTimeout reports whether another session's lock stopped a statement.
func isLockTimeout(err error) bool {
	return code(err) == codeLockTimeout || code(err) == codeNoWaitMySQL
}

// Explain turns an error that a retry does not fix into a *store.SetupError with a
// remedy. It returns other errors unchanged.
func Explain(err error) error {
	var setup *store.SetupError
	if err == nil || errors.As(err, &setup) {
		return err
	}

	explain := func(problem, remedy string) error {
		return &explained{store.SetupError{Problem: problem + ": " + err.Error(), Remedy: remedy}, err}
	}

	switch code(err) {
	case codeAccessDenied, codeAccountLocked, codeAccountMariaDB, codePasswordExpired:
		return explain("database refused the login", "check the user and password of the URL, and the account on the server: its host part too, and whether it must use TLS")
	case codeTLSRequiredByUser:
		return explain("database requires TLS", "remove tls=false from the URL")
	case codeNoDatabase:
		return explain("database of the URL is not accessible", "check its name, or create it")
	case codeDatabaseDenied:
		return explain("database of the URL is not accessible", "check its name, and grant the account what `sluicebox doctor` lists")
	case codeTableDenied, codeColumnDenied, codeDenied:
		return explain("account lacks a right", "grant what `sluicebox doctor` lists")
	case codeStatementFormat:
		return explain("server refused the relay's write", "set binlog_format to ROW as `sluicebox doctor` shows")
	case codeNoTable:
		if strings.Contains(err.Error(), ownPrefix) {
			return explain("relay tables do not exist", initHint)
		}
	case codeNoColumn:
		if strings.Contains(err.Error(), "'l.holder'") {
			return explain("relay tables have another version", initHint)
		}
	}

	switch text := err.Error(); {
	case errors.Is(err, mysql.ErrNoTLS):
		return explain("database offers no TLS", "enable TLS on the server, or add ?tls=false to the URL where the network is trusted")
	case strings.Contains(text, "x509:"):
		return explain("database certificate is not trusted",
			"add tls-ca=FILE of the issuing CA to the URL; the certificate must name the host, otherwise set tls-server-name")
	case errors.Is(err, mysql.ErrCleartextPassword):
		return explain("account requires a cleartext password", "add allow-cleartext-passwords=true to the URL, which must use TLS")
	case errors.Is(err, mysql.ErrOldPassword), errors.Is(err, mysql.ErrUnknownPlugin):
		return explain("account uses an unsupported authentication method", "use caching_sha2_password, mysql_native_password or ed25519")
	}

	return err
}

// explained is an error with a remedy. It keeps the server's error.
type explained struct {
	setup store.SetupError
	err   error
}

func (e *explained) Error() string { return e.setup.Error() }

// Unwrap makes it a *store.SetupError.
func (e *explained) Unwrap() []error { return []error{&e.setup, e.err} }

// ExplainNoSession returns problem and remedy if the server was reached but has no
// session left for the relay; false for any other error.
func ExplainNoSession(err error) (problem, remedy string, ok bool) {
	const show = "\nSHOW PROCESSLIST;"
	problem = "server has no session left for the relay: "
	switch code(err) {
	case codeTooManySessions:
		remedy = "-- as an administrator: lists the open sessions; end unneeded ones (KILL), or raise max_connections" + show
	case codeTooManyOfUser:
		remedy = "-- as an administrator: lists the open sessions; end unneeded ones (KILL), or raise MAX_USER_CONNECTIONS of the account (ALTER USER), or max_user_connections of the server" + show
	case codeUserLimit:
		remedy = "raise the named limit of the account: ALTER USER … WITH …, 0 for none"
	default:
		return "", "", false
	}

	var e *mysql.MySQLError
	_ = errors.As(err, &e) // it has a code
	return problem + e.Message, remedy, true
}

// Unreachable reports whether an error means that no session could be opened or that the
// session was lost, so that a retry may help.
func Unreachable(err error) bool {
	var setup *store.SetupError
	if err == nil || errors.As(Explain(err), &setup) || errors.Is(err, store.ErrNotLeader) || errors.Is(err, store.ErrInterrupted) {
		return false
	}

	if n := code(err); n != 0 {
		return slices.Contains([]int{
			codeTooManySessions, codeTooManyOfUser, codeUserLimit, codeShutdown, codeOffline, codeInterrupted,
			codeLockTimeout, codeDeadlock, codeNoWaitMySQL,
			codeReadOnlyServer, codeReadOnly, codeReadOnlyMode, // a replica that may be promoted
			codeKilledMariaDB, codeKilledMySQL, codeSilenceMySQL,
		}, n)
	}

	return !errors.Is(err, context.Canceled)
}

// sessionLost reports whether the session has ended and the server rolled back the call's
// transaction.
func sessionLost(err error) bool {
	var commit *commitError
	if errors.As(err, &commit) {
		return false
	}
	switch code(err) {
	case codeKilledMariaDB, codeKilledMySQL, codeSilenceMySQL, codeShutdown, codeOffline:
		return true
	}
	return errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, errConnDone)
}

// asRefused turns the database's rejection of a row into a *store.RefusedError: bad data
// (SQLSTATE class 22), constraints (23, 44), errors raised by triggers (45), a row that
// stays locked, a statement that timed out. It returns other errors as Explain does.
func asRefused(err error) error {
	var refused *store.RefusedError
	if errors.As(err, &refused) {
		return err
	}

	class := state(err)
	if len(class) > 2 {
		class = class[:2]
	}

	isRowError := slices.Contains([]int{
		codeLockTimeout, codeNoWaitMySQL, codeDeadlock, codeCheckMySQL, codeCheckMariaDB,
		codeTimeoutMariaDB, codeTimeoutMySQL, codeInterrupted, codeBadValue, codeTruncated, codeNoDefault,
	}, code(err))

	if isRowError || slices.Contains([]string{"22", "23", "44", "45"}, class) {
		return &store.RefusedError{Err: err}
	}
	return Explain(err)
}

// asOwnRefused is asRefused for rows of the relay's tables. No other program locks them,
// so a lock timeout or a cancelled statement does not concern the row.
func asOwnRefused(err error) error {
	switch code(err) {
	case codeLockTimeout, codeNoWaitMySQL, codeDeadlock, codeTimeoutMariaDB, codeTimeoutMySQL, codeInterrupted:
		return Explain(err)
	}
	if errors.Is(err, mysql.ErrPktTooLarge) || code(err) == codePacket {
		return &store.RefusedError{Err: fmt.Errorf("raise max_allowed_packet of the server: %w", err)}
	}
	return asRefused(err)
}

// Errors about a value that report the general SQLSTATE HY000 or 01000.
const (
	codePacket    = 1153 // ER_NET_PACKET_TOO_LARGE
	codeTruncated = 1265 // WARN_DATA_TRUNCATED
	codeNoDefault = 1364 // ER_NO_DEFAULT_FOR_FIELD
	codeTooLong   = 1406 // ER_DATA_TOO_LONG
	codeBadValue  = 1366 // ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
)
