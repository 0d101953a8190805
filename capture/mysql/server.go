package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// flavour is MySQL or MariaDB. This file, position.go and preflight.go hold their
// differences.
type flavour int

const (
	mySQL flavour = iota + 1
	mariaDB
)

func (f flavour) String() string {
	if f == mariaDB {
		return "MariaDB"
	}
	return "MySQL"
}

// identitySQL returns the expression that identifies a server. MariaDB has nothing
// better: two of its servers may share these values.
func (f flavour) identitySQL() string {
	if f == mariaDB {
		return "CONCAT(@@GLOBAL.gtid_domain_id, '-', @@GLOBAL.server_id)"
	}
	return "@@GLOBAL.server_uuid"
}

// executedSQL returns the expression for the transactions executed so far.
func (f flavour) executedSQL() string {
	if f == mariaDB {
		return "@@GLOBAL.gtid_binlog_pos"
	}
	return "@@GLOBAL.gtid_executed"
}

// statusSQL returns the statement that shows the end of the binlog.
func (sv *server) statusSQL() string {
	switch {
	case sv.flavour == mariaDB:
		return "SHOW BINLOG STATUS"
	case sv.version.before(version{8, 2}):
		return "SHOW MASTER STATUS"
	}
	return "SHOW BINARY LOG STATUS"
}

// minVersion returns the oldest supported version, see store/mysql.
func (f flavour) minVersion() version {
	if f == mariaDB {
		return version{10, 6}
	}
	return version{8, 0}
}

// version is major and minor.
type version [2]int

func parseVersion(text string) version {
	var v version
	parts := strings.SplitN(text, ".", 3)
	for i := range min(len(parts), 2) {
		v[i], _ = strconv.Atoi(parts[i])
	}
	return v
}

func (v version) before(w version) bool { return v[0] < w[0] || v[0] == w[0] && v[1] < w[1] }

// server is the information on a server that the checks and the stream need.
type server struct {
	flavour     flavour
	version     version
	versionText string // the version as the server reports it
	identity    string
	user        string
	tls         bool // the server supports TLS; needed only for tls=preferred
	settings    map[string]string
	binlogEnd   coords // end of the binlog at Open; zero if there is no binlog
	filters     map[string]string
	tables      *tables
}

// origin identifies the server's log.
func (sv *server) origin() string {
	return strings.ToLower(sv.flavour.String()) + "/" + sv.identity
}

func (sv *server) setting(name string) string { return sv.settings[name] }

// expiry returns how long the server keeps its binlog; 0 is forever.
func (sv *server) expiry() time.Duration {
	if sv.setting("binlog_expire_logs_auto_purge") == "OFF" {
		return 0
	}
	if seconds, err := strconv.ParseInt(sv.setting("binlog_expire_logs_seconds"), 10, 64); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	days, err := strconv.ParseFloat(sv.setting("expire_logs_days"), 64)
	if err != nil {
		return 0
	}
	return time.Duration(days * 24 * float64(time.Hour))
}

// inspect reads everything that the checks need, and checks it.
func (s *Source) inspect(ctx context.Context) (*server, fault.List, error) {
	var faults fault.List
	sv, err := s.control.identify(ctx)
	if err != nil {
		return nil, faults, err
	}

	sv.settings, err = s.control.variables(ctx,
		"log_bin", "binlog_format", "binlog_row_image", "binlog_row_value_options", "binlog_row_metadata",
		"gtid_mode", "server_id", "binlog_expire_logs_seconds", "binlog_expire_logs_auto_purge", "expire_logs_days",
		"max_binlog_total_size", "binlog_space_limit", "sync_binlog", "lower_case_table_names")
	if err != nil {
		return nil, faults, err
	}

	sv.checkSettings(&faults)
	if sv.binlogEnabled() {
		if err := faults.AddErr(s.control.readBinlogEnd(ctx, sv)); err != nil {
			return nil, faults, err
		}
	}

	if sv.tables, err = s.findTables(ctx, sv, &faults); err != nil {
		return nil, faults, err
	}
	sv.checkFilters(s, &faults)
	if s.watching { // it needs neither markers nor whole rows
		faults.Faults = slices.DeleteFunc(faults.Faults, func(f fault.Fault) bool { return !watchedNeeds(f.Subject) })
	} else if err := s.checkMarkerTable(ctx, &faults); err != nil {
		return nil, faults, err
	}

	return sv, faults, nil
}

// canStream reports whether the settings allow the server to send its binlog.
func (sv *server) canStream() bool {
	return sv.binlogEnabled() && !sv.version.before(sv.flavour.minVersion()) && (sv.flavour == mariaDB || sv.setting("gtid_mode") == "ON")
}

func (sv *server) binlogEnabled() bool { return sv.setting("log_bin") == "ON" }

// identify reads the identity of the server.
func (c *control) identify(ctx context.Context) (*server, error) {
	var sv server
	if err := c.db.QueryRowContext(ctx, "SELECT VERSION(), CURRENT_USER()").Scan(&sv.versionText, &sv.user); err != nil {
		return nil, fmt.Errorf("inspect server: %w", mystore.Explain(err))
	}

	sv.flavour, sv.version = mySQL, parseVersion(sv.versionText)
	if strings.Contains(sv.versionText, "MariaDB") {
		sv.flavour = mariaDB
	}

	if err := c.db.QueryRowContext(ctx, "SELECT "+sv.flavour.identitySQL()).Scan(&sv.identity); err != nil {
		return nil, fmt.Errorf("read server identity: %w", mystore.Explain(err))
	}
	status, err := c.queryMaps(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
	if err != nil {
		return nil, fmt.Errorf("read TLS status: %w", mystore.Explain(err))
	}

	sv.tls = len(status) > 0 && status[0]["Value"] != ""
	return &sv, nil
}

// readBinlogEnd reads the end of the binlog.
func (c *control) readBinlogEnd(ctx context.Context, sv *server) error {
	if sv.version.before(sv.flavour.minVersion()) {
		return nil // an older server lacks the statement; its version is a fault of its own
	}
	rows, err := c.queryMaps(ctx, sv.statusSQL())
	if denied(err) {
		return sv.monitorGrantFault(err).Err()
	}
	if err != nil || len(rows) == 0 {
		return fmt.Errorf("read end of binlog: %w", mystore.Explain(errors.Join(err, noRows(rows))))
	}

	sv.filters = map[string]string{"binlog_do_db": rows[0]["Binlog_Do_DB"], "binlog_ignore_db": rows[0]["Binlog_Ignore_DB"]}
	sv.binlogEnd.file = rows[0]["File"]
	if sv.binlogEnd.at, err = strconv.ParseUint(rows[0]["Position"], 10, 64); err != nil {
		return fmt.Errorf("read end of binlog: %w", err)
	}

	return nil
}

func noRows(rows []map[string]string) error {
	if len(rows) == 0 {
		return errors.New("server returned no row")
	}
	return nil
}
