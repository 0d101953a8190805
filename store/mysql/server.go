package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/tlserror"
)

// This file holds the differences between MySQL and MariaDB, and the errors of both.

// The oldest supported servers, because NOWAIT, SKIP LOCKED and index hints work
// everywhere the relay uses them since MySQL 8.0.20 and MariaDB 10.6.
const (
	minMySQLVersion   = 8_00_20
	minMariaDBVersion = 10_06_00
)

// server describes the server of a session.
type server struct {
	version  string // as the server reports it
	number   int    // e.g. 8_00_20 for 8.0.20
	mariadb  bool
	database string
	account  string // user@host of the grants that apply
	session  int64  // connection id of the session
	identity string // unique to this server
	// durable means that commits survive a crash of the server's machine. With a binlog
	// this includes the binlog, because recovery rolls back transactions that the binlog
	// lost.
	durable bool
	// packet is the maximum size of one statement in bytes.
	packet int
}

// queryServer reads the description of the server on a new session.
func queryServer(ctx context.Context, conn *sql.Conn) (s server, err error) {
	const ask = `
SELECT VERSION(), COALESCE(DATABASE(), ''), CURRENT_USER(), CONNECTION_ID(), CONCAT(@@hostname, ':', @@port, ' ', @@server_id, ' ', @@datadir),
  @@innodb_flush_log_at_trx_commit = 1 AND (NOT @@log_bin OR @@sync_binlog = 1), @@max_allowed_packet`

	err = conn.QueryRowContext(ctx, ask).Scan(&s.version, &s.database, &s.account, &s.session, &s.identity, &s.durable, &s.packet)
	if err != nil {
		return s, err
	}

	s.mariadb = strings.Contains(strings.ToLower(s.version), "mariadb")
	s.number = versionNumber(s.version)
	if !s.mariadb { // MariaDB has no server_uuid
		var uuid string
		err = conn.QueryRowContext(ctx, "SELECT @@server_uuid").Scan(&uuid)
		s.identity = uuid
	}

	return s, err
}

// versionNumber turns 8.0.20-debian into 8_00_20. MariaDB may prefix its version with
// 5.5.5- for clients that do not know its version numbers.
func versionNumber(version string) (number int) {
	version = strings.TrimPrefix(version, "5.5.5-")
	end := strings.IndexFunc(version, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end >= 0 {
		version = version[:end]
	}

	parts := strings.SplitN(version, ".", 3)
	for i := range 3 {
		n := 0
		if i < len(parts) {
			n, _ = strconv.Atoi(parts[i]) // digits only
		}
		number = number*100 + n
	}

	return number
}

// name returns the server's product name.
func (s *server) name() string {
	if s.mariadb {
		return "MariaDB"
	}
	return "MySQL"
}

// tooOld reports whether the server is older than the oldest supported version, which it
// also returns.
func (s *server) tooOld() (minVersion string, old bool) {
	if s.mariadb {
		return "MariaDB 10.6", s.number < minMariaDBVersion
	}
	return "MySQL 8.0.20", s.number < minMySQLVersion
}

// visible returns the condition on information_schema.statistics that statements may use
// an index. A statement that names an invisible index fails.
func (s *server) visible() string {
	if s.mariadb {
		return "ignored = 'NO'"
	}
	return "is_visible = 'YES'"
}

// tableLocked reports whether a NOWAIT statement failed at a lock on the whole table.
// MySQL waits for table locks despite NOWAIT and has a separate error for rows. MariaDB
// waits for neither.
func (s *server) tableLocked(err error) bool { return !s.mariadb && code(err) == codeLockTimeout }

// Error numbers of both servers or of one of them; see
// https://dev.mysql.com/doc/mysql-errors/9.0/en/server-error-reference.html and
// https://mariadb.com/kb/en/mariadb-error-code-reference/.
const (
	codeAccessDenied      = 1045 // ER_ACCESS_DENIED_ERROR
	codeDatabaseDenied    = 1044 // ER_DBACCESS_DENIED_ERROR
	codeNoDatabase        = 1049 // ER_BAD_DB_ERROR
	codeTooManySessions   = 1040 // ER_CON_COUNT_ERROR
	codeTableExists       = 1050 // ER_TABLE_EXISTS_ERROR
	codeDuplicate         = 1062 // ER_DUP_ENTRY
	codeShutdown          = 1053 // ER_SERVER_SHUTDOWN
	codeNoColumn          = 1054 // ER_BAD_FIELD_ERROR
	codeTableDenied       = 1142 // ER_TABLEACCESS_DENIED_ERROR
	codeColumnDenied      = 1143 // ER_COLUMNACCESS_DENIED_ERROR
	codeNoTable           = 1146 // ER_NO_SUCH_TABLE
	codeTooManyOfUser     = 1203 // ER_TOO_MANY_USER_CONNECTIONS
	codeLockTimeout       = 1205 // ER_LOCK_WAIT_TIMEOUT
	codeDeadlock          = 1213 // ER_LOCK_DEADLOCK
	codeUserLimit         = 1226 // ER_USER_LIMIT_REACHED
	codeDenied            = 1227 // ER_SPECIFIC_ACCESS_DENIED_ERROR
	codeReadOnlyServer    = 1290 // ER_OPTION_PREVENTS_STATEMENT
	codeInterrupted       = 1317 // ER_QUERY_INTERRUPTED
	codeStatementFormat   = 1665 // ER_BINLOG_STMT_MODE_AND_ROW_ENGINE
	codeReadOnly          = 1792 // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
	codeReadOnlyMode      = 1836 // ER_READ_ONLY_MODE
	codeKilledMariaDB     = 1927 // ER_CONNECTION_KILLED
	codeTimeoutMariaDB    = 1969 // ER_STATEMENT_TIMEOUT
	codeTimeoutMySQL      = 3024 // ER_QUERY_TIMEOUT
	codeOffline           = 3032 // ER_SERVER_OFFLINE_MODE
	codeKilledMySQL       = 3169 // ER_SESSION_WAS_KILLED
	codeNoWaitMySQL       = 3572 // ER_LOCK_NOWAIT; MariaDB has codeLockTimeout
	codeCheckMySQL        = 3819 // ER_CHECK_CONSTRAINT_VIOLATED
	codeCheckMariaDB      = 4025 // ER_CONSTRAINT_FAILED
	codeSilenceMySQL      = 4031 // ER_CLIENT_INTERACTION_TIMEOUT
	codePasswordExpired   = 1820 // ER_MUST_CHANGE_PASSWORD
	codeAccountLocked     = 3118 // ER_ACCOUNT_HAS_BEEN_LOCKED
	codeAccountMariaDB    = 4151 // ER_ACCOUNT_HAS_BEEN_LOCKED
	codeTLSRequiredByUser = 3159 // ER_SECURE_TRANSPORT_REQUIRED
)

// multiPrimary returns why several servers accept writes; "" if only this one does. With
// several, the lock of one server does not exclude relays on another.
func (s *server) multiPrimary(ctx context.Context, c *conn) (string, error) {
	galera, err := c.isOn(ctx, "wsrep_on") // of MariaDB or Percona XtraDB Cluster
	switch {
	case galera:
		return "a Galera cluster (wsrep_on = ON)", err
	case err != nil || s.mariadb:
		return "", err
	}

	single, err := c.variable(ctx, "group_replication_single_primary_mode")
	if err != nil || !strings.EqualFold(single, "OFF") {
		return "", err
	}

	var members int
	err = c.row(ctx, "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE <> 'OFFLINE'", nil, &members)
	if err != nil || members == 0 {
		return "", err
	}

	return "a multi-primary group (group_replication_single_primary_mode = OFF)", nil
}

// snapshotPosition returns the binlog position of the snapshot that the session has just
// opened, with its file and offset, which tell it from the same GTID of another binlog; ""
// if the server does not report it. MariaDB takes both together.
func (s *server) snapshotPosition(ctx context.Context, c *conn) (store.Position, error) {
	if !s.mariadb {
		return "", nil
	}
	status := map[string]string{}
	rows, err := c.sqlConn.QueryContext(ctx, "SHOW SESSION STATUS LIKE 'binlog\\_snapshot\\_%'")
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }() // rows.Err returns its error

	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return "", err
		}
		status[strings.ToLower(name)] = value
	}

	if err := rows.Err(); err != nil {
		return "", err
	}
	file, offset := status["binlog_snapshot_file"], status["binlog_snapshot_position"]
	if file == "" {
		return "", nil // no binlog
	}

	at, err := strconv.ParseInt(offset, 10, 64)
	if err != nil {
		return "", fmt.Errorf("invalid snapshot position %q in %s", offset, file)
	}

	var set sql.NullString
	if err := c.sqlConn.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS('"+literal(file)+"', "+strconv.FormatInt(at, 10)+")").Scan(&set); err != nil {
		return "", err
	}
	return store.Position(fmt.Sprintf("%s@%s:%d", set.String, file, at)), nil
}

// literal escapes a text for use between quotes.
func literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text)
}

// isolation returns the statement that sets the isolation level of a session's
// transactions, because the variable has different names on the two servers.
func isolation(level string) string { return "SET SESSION TRANSACTION ISOLATION LEVEL " + level }

// setGlobal returns the lines that set a global variable permanently.
func (s *server) setGlobal(name, value string) []string {
	if s.mariadb {
		return []string{fmt.Sprintf("-- as an administrator, and put `%s=%s` into the server's configuration", name, value), fmt.Sprintf("SET GLOBAL %s = %s;", name, value)}
	}
	return []string{"-- as an administrator", fmt.Sprintf("SET PERSIST %s = %s;", name, value)}
}

// statementLimit returns the time limit for reading statements of this session in
// seconds, 0 for none, and the lines that raise it.
func (s *server) statementLimit(ctx context.Context, c *conn) (limit float64, remedy []string, err error) {
	if s.mariadb {
		err = c.row(ctx, "SELECT @@max_statement_time", nil, &limit)
		return limit, []string{"-- as an administrator", "ALTER USER " + Account(s.account) + " WITH MAX_STATEMENT_TIME 3600;"}, err
	}
	err = c.row(ctx, "SELECT @@max_execution_time / 1000", nil, &limit)
	return limit, s.setGlobal("max_execution_time", "0"), err
}

// findChecks returns the query for the enforced CHECK constraints of a table: name,
// expression, and whether the constraint cannot be dropped by name.
func (s *server) findChecks() string {
	if s.mariadb {
		return `
SELECT k.constraint_name, k.check_clause, k.level <> 'Table' FROM information_schema.check_constraints k
WHERE k.constraint_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND k.table_name = ? ORDER BY k.constraint_name`
	}
	return `
SELECT k.constraint_name, k.check_clause, FALSE FROM information_schema.check_constraints k
JOIN information_schema.table_constraints t ON t.constraint_schema = k.constraint_schema AND t.constraint_name = k.constraint_name
WHERE t.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND t.table_name = ? AND t.constraint_type = 'CHECK' AND t.enforced = 'YES'
ORDER BY k.constraint_name`
}

// expression returns a constraint's expression as a statement takes it. MySQL shows it
// escaped, as in a string literal.
func (s *server) expression(clause string) string {
	if s.mariadb {
		return clause
	}
	return strings.NewReplacer(`\\`, `\`, `\'`, `'`).Replace(clause)
}

// initHint is the remedy for missing or outdated tables of the relay.
const initHint = "run `sluicebox init`"

// code returns the number of a server error; 0 for any other error.
func code(err error) int {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return int(e.Number)
	}
	return 0
}

// state returns the SQLSTATE of a server error; "" for any other error.
func state(err error) string {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
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
			tlserror.Advice(text, tlsKeys()))
	case errors.Is(err, mysql.ErrCleartextPassword):
		return explain("account requires a cleartext password", "add allow-cleartext-passwords=true to the URL, which must use TLS")
	case errors.Is(err, mysql.ErrOldPassword), errors.Is(err, mysql.ErrUnknownPlugin):
		return explain("account uses an unsupported authentication method", "use caching_sha2_password, mysql_native_password or ed25519")
	}

	return tlserror.Wrap(err, tlsKeys())
}

// tlsKeys are the parameters of the URL for TLS.
func tlsKeys() tlserror.Keys {
	return tlserror.Keys{CA: "tls-ca=FILE", Certificate: "tls-cert=FILE and tls-key=FILE", Name: "tls-server-name=NAME"}
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
	if _, ok := errors.AsType[*commitError](err); ok {
		return false
	}
	switch code(err) {
	case codeKilledMariaDB, codeKilledMySQL, codeSilenceMySQL, codeShutdown, codeOffline:
		return true
	}
	return idledOut(err) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, errConnDone)
}

// idledOut reports whether the server ended the session because the relay was silent for
// store.MinLockLease, for example while the machine was short of CPU. MySQL sends a notice
// then. If the notice arrives together with a statement's response, the driver finds it
// unread before the next statement, and that is mysql.ErrBusyBuffer.
func idledOut(err error) bool {
	return code(err) == codeSilenceMySQL || errors.Is(err, mysql.ErrBusyBuffer)
}

// asRefused turns the database's rejection of a row into a *store.RefusedError: bad data
// (SQLSTATE class 22), constraints (23, 44), errors raised by triggers (45), a row that
// stays locked, a statement that timed out. It returns other errors as Explain does.
func asRefused(err error) error {
	if _, ok := errors.AsType[*store.RefusedError](err); ok {
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
	codeBadValue  = 1366 // ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
)
