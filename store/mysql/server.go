package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// This file holds what MySQL and MariaDB do differently.

// The oldest servers that the relay works with: MySQL 8.0.20 and MariaDB 10.6 have
// NOWAIT, SKIP LOCKED and index hints everywhere they are used.
const (
	minMySQLVersion   = 8_00_20
	minMariaDBVersion = 10_06_00
)

// server is what a session's server is.
type server struct {
	version  string // as it says itself
	number   int    // 8_00_20 for 8.0.20
	mariadb  bool
	database string
	account  string // user@host, of the grants that apply
	session  int64  // the number of the session
	identity string // of this server among others
	// durable: what is committed survives a crash of the server's machine. With a
	// binlog it must be there too: recovery takes back what the log has lost.
	durable bool
	// packet is the most bytes of one statement.
	packet int
}

// queryServer asks a new session where it is.
func queryServer(ctx context.Context, on *sql.Conn) (s server, err error) {
	const ask = `
SELECT VERSION(), COALESCE(DATABASE(), ''), CURRENT_USER(), CONNECTION_ID(), CONCAT(@@hostname, ':', @@port, ' ', @@server_id, ' ', @@datadir),
  @@innodb_flush_log_at_trx_commit = 1 AND (NOT @@log_bin OR @@sync_binlog = 1), @@max_allowed_packet`
	err = on.QueryRowContext(ctx, ask).Scan(&s.version, &s.database, &s.account, &s.session, &s.identity, &s.durable, &s.packet)
	if err != nil {
		return s, err
	}
	s.mariadb = strings.Contains(strings.ToLower(s.version), "mariadb")
	s.number = versionNumber(s.version)
	if !s.mariadb { // which has such a number, and MariaDB has none
		var uuid string
		err = on.QueryRowContext(ctx, "SELECT @@server_uuid").Scan(&uuid)
		s.identity = uuid
	}
	return s, err
}

// versionNumber makes 8_00_20 of 8.0.20-debian. MariaDB may put 5.5.5- in front,
// for clients that are older than its own numbers.
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

// name is what the server is called.
func (s *server) name() string {
	if s.mariadb {
		return "MariaDB"
	}
	return "MySQL"
}

// tooOld says that the server is older than the relay works with.
func (s *server) tooOld() (least string, old bool) {
	if s.mariadb {
		return "MariaDB 10.6", s.number < minMariaDBVersion
	}
	return "MySQL 8.0.20", s.number < minMySQLVersion
}

// visible is the condition on information_schema.statistics that statements may use an
// index. A statement that names one of the others fails.
func (s *server) visible() string {
	if s.mariadb {
		return "ignored = 'NO'"
	}
	return "is_visible = 'YES'"
}

// tableLocked reports whether a NOWAIT statement has waited for a lock of the whole
// table: MySQL waits for those all the same, and has another error for rows. MariaDB
// waits for neither.
func (s *server) tableLocked(err error) bool { return !s.mariadb && code(err) == codeLockTimeout }

// Numbers of errors that both have, and that one of them has; see
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

// multiPrimary returns what makes the server one of several that take writes, ""
// if nothing does: there a lock that one of them gives keeps nobody else out.
func (s *server) multiPrimary(ctx context.Context, c *conn) (string, error) {
	if s.mariadb {
		on, err := c.variable(ctx, "wsrep_on")
		if strings.EqualFold(on, "ON") || on == "1" {
			return "a Galera cluster (wsrep_on = ON)", err
		}
		return "", err
	}
	on, err := c.variable(ctx, "wsrep_on") // Percona XtraDB Cluster
	if err != nil || strings.EqualFold(on, "ON") {
		return "a Galera cluster (wsrep_on = ON)", err
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

// snapshotPosition returns the place in the log that matches the snapshot that a
// session has just taken, "" where the server does not tell it. MariaDB takes both
// together.
func (s *server) snapshotPosition(ctx context.Context, c *conn) (store.Position, error) {
	if !s.mariadb {
		return "", nil
	}
	status := map[string]string{}
	rows, err := c.sqlConn.QueryContext(ctx, "SHOW SESSION STATUS LIKE 'binlog\\_snapshot\\_%'")
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }() // its error is that of rows.Err
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
	file, place := status["binlog_snapshot_file"], status["binlog_snapshot_position"]
	if file == "" {
		return "", nil // it writes no log
	}
	at, err := strconv.ParseInt(place, 10, 64)
	if err != nil {
		return "", fmt.Errorf("the snapshot's place in %s is %q, no number", file, place)
	}
	var set sql.NullString
	if err := c.sqlConn.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS('"+literal(file)+"', "+strconv.FormatInt(at, 10)+")").Scan(&set); err != nil {
		return "", err
	}
	return store.Position(set.String), nil
}

// literal is a text as it stands between quotes.
func literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text)
}

// isolation is the statement that sets the isolation of a session's transactions;
// the variables for it have two names.
func isolation(level string) string { return "SET SESSION TRANSACTION ISOLATION LEVEL " + level }

// setGlobal returns the lines that set a variable of the server for good.
func (s *server) setGlobal(name, value string) []string {
	if s.mariadb {
		return []string{fmt.Sprintf("-- as an administrator, and put `%s=%s` into the server's configuration", name, value), fmt.Sprintf("SET GLOBAL %s = %s;", name, value)}
	}
	return []string{"-- as an administrator", fmt.Sprintf("SET PERSIST %s = %s;", name, value)}
}

// statementLimit returns for how many seconds a statement of this session that reads may
// take, 0 for any time, and the lines that give it more.
func (s *server) statementLimit(ctx context.Context, c *conn) (limit float64, more []string, err error) {
	if s.mariadb {
		err = c.row(ctx, "SELECT @@max_statement_time", nil, &limit)
		return limit, []string{"-- as an administrator", "ALTER USER " + Account(s.account) + " WITH MAX_STATEMENT_TIME 3600;"}, err
	}
	err = c.row(ctx, "SELECT @@max_execution_time / 1000", nil, &limit)
	return limit, s.setGlobal("max_execution_time", "0"), err
}

// findChecks gives the constraints of a table that are enforced: their names, their
// expressions, and whether they can be dropped by name.
func (s *server) findChecks() string {
	if s.mariadb {
		return `
SELECT k.constraint_name, k.check_clause, k.level = 'Table' FROM information_schema.check_constraints k
WHERE k.constraint_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND k.table_name = ? ORDER BY k.constraint_name`
	}
	return `
SELECT k.constraint_name, k.check_clause, TRUE FROM information_schema.check_constraints k
JOIN information_schema.table_constraints t ON t.constraint_schema = k.constraint_schema AND t.constraint_name = k.constraint_name
WHERE t.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND t.table_name = ? AND t.constraint_type = 'CHECK' AND t.enforced = 'YES'
ORDER BY k.constraint_name`
}

// expression is a constraint's expression as a statement takes it: MySQL shows it as the
// content of a literal.
func (s *server) expression(clause string) string {
	if s.mariadb {
		return clause
	}
	return strings.NewReplacer(`\\`, `\`, `\'`, `'`).Replace(clause)
}
