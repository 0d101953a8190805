package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// minExpiry is how long a server must keep its binlog, so that a relay can be down
// overnight.
const minExpiry = 24 * time.Hour

// checkSettings checks the server's settings.
func (sv *server) checkSettings(faults *fault.List) {
	if oldest := sv.flavour.minVersion(); sv.version.before(oldest) {
		faults.Add(fault.Fault{Subject: "server",
			Problem: fmt.Sprintf("server is %s %s, %d.%d or later is required", sv.flavour, sv.versionText, oldest[0], oldest[1]), Instructions: "upgrade it, or poll"})
	}

	if !sv.binlogEnabled() {
		faults.Add(fault.Fault{Subject: "log_bin", Problem: "log_bin is off: server writes no binlog",
			Instructions: "add `log_bin=binlog` and a `server_id` to section [mysqld] of the server's configuration (and remove skip_log_bin or disable_log_bin), and restart it"})
	}

	if sv.setting("server_id") == "0" {
		faults.Add(sv.settingFault("server_id", "server_id is 0: server does not send its binlog", "1", "with a number that no other server of the replication topology has"))
	}
	const sessions = "and reconnect the services, because a session keeps its settings"
	if format := sv.setting("binlog_format"); format != "ROW" && format != "" { // ROW is about to be the only format
		faults.Add(sv.settingFault("binlog_format", "binlog_format is "+format+", must be ROW", "ROW", sessions))
	}

	if image := sv.setting("binlog_row_image"); image != "FULL" {
		faults.Add(sv.settingFault("binlog_row_image", "binlog_row_image is "+image+", must be FULL", "FULL", sessions))
	}
	if options := sv.setting("binlog_row_value_options"); options != "" {
		faults.Add(sv.settingFault("binlog_row_value_options", "binlog_row_value_options is "+options+", must be empty", "", sessions))
	}

	if mode := sv.setting("gtid_mode"); sv.flavour == mySQL && mode != "ON" {
		faults.Add(fault.Fault{Subject: "gtid_mode", Problem: "gtid_mode is " + mode + ", must be ON", Statements: gtidSteps(mode),
			Instructions: "as an administrator, one at a time, each on every server of the replication topology before the next"})
	}

	if retention := sv.expiry(); retention != 0 && retention < minExpiry {
		faults.Add(sv.settingFault("retention", "binlog is kept for "+formatDuration(retention)+" (binlog_expire_logs_seconds), must be a day or more", "604800", ""))
	}
}

// gtidSteps returns the statements that change gtid_mode from mode to ON
// (https://dev.mysql.com/doc/refman/9.0/en/replication-mode-change-online-enable-gtids.html).
func gtidSteps(mode string) []string {
	steps := []string{"SET PERSIST enforce_gtid_consistency = ON;"}
	modes := []string{"OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"}
	for _, next := range modes[slices.Index(modes, mode)+1:] {
		steps = append(steps, "SET PERSIST gtid_mode = "+next+";")
	}
	return steps
}

// settingFault returns the fault of a setting that can be changed at runtime.
func (sv *server) settingFault(subject, problem, value, extra string) fault.Fault {
	name := subject
	if subject == "retention" {
		name = "binlog_expire_logs_seconds"
	}

	if name != "server_id" && name != "binlog_expire_logs_seconds" && name != "sync_binlog" {
		value = "'" + value + "'"
	}
	f := fault.Fault{Subject: subject, Problem: problem, Instructions: "as an administrator"}
	if sv.flavour == mariaDB {
		f.Statements = []string{fmt.Sprintf("SET GLOBAL %s = %s;", name, value)}
		f.Instructions += fmt.Sprintf(", and put `%s=%s` into the server's configuration", name, strings.Trim(value, "'"))
	} else {
		f.Statements = []string{fmt.Sprintf("SET PERSIST %s = %s;", name, value)}
	}

	if extra != "" {
		f.Instructions += ", " + extra
	}
	return f
}

// checkFilters checks that the binlog includes the databases of the outboxes and of the
// markers.
func (sv *server) checkFilters(s *Source, faults *fault.List) {
	only, ignored := splitList(sv.filters["binlog_do_db"]), splitList(sv.filters["binlog_ignore_db"])
	seen := map[string]bool{}
	names := []string{s.database()} // the markers' database
	for i := range s.cfg.Outboxes {
		names = append(names, s.schemaOf(&s.cfg.Outboxes[i]))
	}

	for _, name := range names {
		if seen[name] || (len(only) == 0 || slices.Contains(only, name)) && !slices.Contains(ignored, name) {
			continue
		}
		seen[name] = true
		faults.Add(fault.Fault{Subject: "log_bin", Problem: fmt.Sprintf("binlog excludes database %s: binlog_do_db is %q, binlog_ignore_db is %q",
			name, sv.filters["binlog_do_db"], sv.filters["binlog_ignore_db"]), Instructions: "change these options in the server's configuration and restart it"})
	}
}

func splitList(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// Error numbers of the servers
// (https://dev.mysql.com/doc/mysql-errors/9.0/en/server-error-reference.html).
const (
	errDatabaseDenied  = 1044 // ER_DBACCESS_DENIED_ERROR
	errAccessDenied    = 1045 // ER_ACCESS_DENIED_ERROR
	errTableDenied     = 1142 // ER_TABLEACCESS_DENIED_ERROR
	errPrivilege       = 1227 // ER_SPECIFIC_ACCESS_DENIED_ERROR
	errReadingBinlog   = 1236 // ER_SOURCE_FATAL_ERROR_READING_BINLOG
	errSourceInfo      = 1201 // ER_MASTER_INFO, MariaDB
	errHostNotAllowed  = 1130 // ER_HOST_NOT_PRIVILEGED
	errSameID          = 4052 // ER_SLAVE_SAME_ID, MariaDB
	errPasswordExpired = 1820 // ER_MUST_CHANGE_PASSWORD
)

// denied reports whether the role lacks a privilege.
func denied(err error) bool {
	var e *driver.MySQLError
	return errors.As(err, &e) && (e.Number == errPrivilege || e.Number == errDatabaseDenied || e.Number == errTableDenied)
}

// monitorGrantFault returns the fault of a role that may not read the end of the binlog.
func (sv *server) monitorGrantFault(err error) fault.Fault {
	privilege := "REPLICATION CLIENT"
	if sv.flavour == mariaDB {
		privilege = "BINLOG MONITOR"
	}
	return fault.Fault{Subject: "grants", Problem: fmt.Sprintf("role %s may not read the binlog status: %v", sv.user, err),
		Statements: []string{fmt.Sprintf("GRANT %s ON *.* TO %s;", privilege, mystore.Account(sv.user))}, Instructions: "as an administrator"}
}

// tryStream checks whether the streaming role may read the binlog, by trying. If it may
// not, the GRANT needs the host of its account, which only a session of that role can
// read.
func (s *Source) tryStream(ctx context.Context, sv *server, faults *fault.List) error {
	if sv.setting("server_id") == "0" {
		return nil // such a server accepts no replica, which is a fault of its own
	}
	err := s.tryStreamFromEnd(ctx, sv)
	if f := fault.FromError(err); f != nil && len(f.Statements) > 0 && s.stream.User != s.control.config.User {
		if role, ok := s.streamRole(ctx); ok {
			f.Statements = []string{"GRANT REPLICATION SLAVE ON *.* TO " + mystore.Account(role) + ";"}
		}
	}
	return faults.AddErr(err)
}

// streamRole returns the streaming role as the server knows it, user@host.
func (s *Source) streamRole(ctx context.Context) (role string, ok bool) {
	cfg := s.stream.Clone()
	cfg.DBName = "" // it needs no right on a database
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return "", false
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	err = db.QueryRowContext(ctx, "SELECT CURRENT_USER()").Scan(&role)
	return role, err == nil
}

// replicasSQL returns the statement that lists the readers of the binlog.
func (sv *server) replicasSQL() string {
	if sv.flavour == mariaDB || sv.version.before(version{8, 1}) { // SHOW REPLICAS exists since 8.0.22
		return "SHOW SLAVE HOSTS"
	}
	return "SHOW REPLICAS"
}

// streamName is the name of a dump in that list.
func (s *Source) streamName() string { return "sluicebox " + s.cfg.Name }

// checkMarkerTable checks that the table of markers exists.
func (s *Source) checkMarkerTable(ctx context.Context, faults *fault.List) error {
	const look = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?"
	found, err := s.control.queryStrings(ctx, look, s.database(), markTable)
	if err != nil {
		return fmt.Errorf("look up table %s: %w", markTable, mystore.Explain(err))
	}
	if len(found) == 0 {
		faults.Add(fault.Fault{Subject: "relay tables", Problem: fmt.Sprintf("table %s for the relay's markers does not exist in database %s", markTable, s.database()),
			Instructions: "run `sluicebox init`"})
	}
	return nil
}
