package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// reason is the meaning of error 1236. The servers use this number for everything that
// keeps them from sending their binlog.
type reason int

const (
	otherReason      reason = iota
	clashReason             // another stream with the same server id (MariaDB) or UUID (MySQL) replaced this one
	lostReason              // the log behind the position is missing
	noBinlogReason          // the server has no binlog
	gtidReason              // its transactions have no GTIDs
	noServerIDReason        // the server has no server id
)

// reasonOf finds the reason by the text of the message (rpl_binlog_sender.cc of MySQL,
// sql_repl.cc of MariaDB).
func reasonOf(message string) reason {
	for _, known := range []struct {
		reason reason
		texts  []string
	}{
		{clashReason, []string{"slave with the same server_uuid", "replica with the same"}},
		{lostReason, []string{
			"purged required binary logs", "required binary log files have been purged", "binary log files have been purged",
			"Could not find GTID state requested by slave", "which is not in the master's binlog", "which is not in the primary's binlog",
			"is missing the GTID", "has more GTIDs than the", "Could not find first log file name", "impossible position",
		}},
		{noBinlogReason, []string{"Binary log is not open", "binary log is not enabled"}},
		{gtidReason, []string{"GTID_MODE"}},
		{noServerIDReason, []string{"server_id was not set"}},
	} {
		for _, text := range known.texts {
			if strings.Contains(message, text) {
				return known.reason
			}
		}
	}

	return otherReason
}

// serverIDClashError means that another replica reads the binlog with the relay's server
// id.
type serverIDClashError struct{ message string }

func (e *serverIDClashError) Error() string {
	return "stream ended by server: another replica uses the same server id: " + e.message
}

// explainDump turns the server's error about a dump into an error of package capture.
func (s *Source) explainDump(sv *server, d *dump, err error) error {
	var e *mysql.MyError
	if !errors.As(err, &e) {
		return err
	}

	switch e.Code {
	case errPrivilege, errAccessDenied, errDatabaseDenied, errHostNotAllowed, errPasswordExpired:
		return s.streamGrantFault(sv, d, e).Err()
	case errSameID:
		return &serverIDClashError{e.Message}
	case errReadingBinlog, errSourceInfo:
	default:
		return err
	}

	switch reasonOf(e.Message) {
	case clashReason:
		return &serverIDClashError{e.Message}
	case lostReason:
		return &capture.LostError{Reason: e.Message}
	case noBinlogReason:
		return fault.NoStream("server writes no binlog: "+e.Message, "turn on log_bin")
	case gtidReason:
		return fault.NoStream("server assigns no GTIDs: "+e.Message, "set gtid_mode to ON")
	case noServerIDReason:
		return fault.NoStream("server does not send its binlog: "+e.Message, "set server_id on the server")
	}

	return &fault.UnreadableLogError{Err: err}
}

// streamGrantFault returns the fault for a role that may not stream the binlog.
func (s *Source) streamGrantFault(sv *server, d *dump, e *mysql.MyError) fault.Fault {
	f := fault.Fault{Subject: "stream", Problem: fmt.Sprintf("role %s may not stream: %s", s.stream.User, e.Message), Instructions: "as an administrator"}
	if d.loggedIn { // a wrong password has the same number
		role := sv.user
		if s.stream.User != s.control.config.User {
			role = s.stream.User + "@%"
		}
		f.Statements = []string{"GRANT REPLICATION SLAVE ON *.* TO " + mystore.Account(role) + ";"}
		return f
	}
	f.Instructions = "check the user and password of the URL, and that the role may log in from this host"
	return f
}

const (
	// clashTimeout is how long two streams may end each other before the clash counts as
	// permanent. Before that, the other stream may belong to the predecessor of a new
	// leader. After clashResetInterval without a clash, the count restarts.
	clashTimeout       = 10 * time.Second
	clashResetInterval = 30 * time.Second
)

// serverIDClash records the first and last time in a series of clashes.
type serverIDClash struct{ first, last time.Time }

// count adds a clash. It returns err itself, or a *capture.NoStreamError after
// clashTimeout.
func (c *serverIDClash) count(now time.Time, id uint32, err *serverIDClashError) error {
	if now.Sub(c.last) > clashResetInterval {
		c.first = now
	}
	c.last = now
	if now.Sub(c.first) < clashTimeout {
		return err
	}
	*c = serverIDClash{}
	return fault.NoStream(fmt.Sprintf("another replica or relay uses server id %d, and each ends the other's stream: %s", id, err.message),
		"give each its own server id (source.server-id; SHOW REPLICA HOSTS lists the ids in use)")
}

// classifyEnd returns the error of a run that failed with err.
func (s *Source) classifyEnd(ctx context.Context, err error, progress bool) error {
	var clash *serverIDClashError
	if errors.As(err, &clash) {
		return s.clash.count(time.Now(), s.cfg.ServerID, clash)
	}
	var mismatch *layoutMismatchError
	if errors.As(err, &mismatch) {
		return s.explainLayoutMismatch(mismatch)
	}
	if progress {
		s.mismatchedTable = ""
	}
	return s.failures.Classify(s.explainMissingColumns(ctx, err), progress, s.resume.Last())
}

// explainLayoutMismatch returns the error for a table whose columns differ from the
// binlog's. The first time the log counts as lost, and a snapshot resumes after the
// change. If the next rows do not match either, the table has columns that the server
// does not show.
func (s *Source) explainLayoutMismatch(e *layoutMismatchError) error {
	if key := e.table.schema + "." + e.table.name; s.mismatchedTable != key {
		s.mismatchedTable = key
		return fault.Lostf("log after position %s predates a table change: %v", s.resume.Last(), e)
	}
	s.mismatchedTable = ""
	problem := fmt.Sprintf("binlog has no column names (binlog_row_metadata is not FULL) and columns cannot be matched: %v", e)
	f := s.server.settingFault("binlog_row_metadata", problem, "FULL", "")
	f.Subject = "tables"
	return f.Err()
}

// explainMissingColumns distinguishes a table that lost a column from rows that are older
// than the column.
func (s *Source) explainMissingColumns(ctx context.Context, err error) error {
	return fault.ExplainMissingColumns(err, func(missing *fault.MissingColumnsError) bool {
		now := &table{schema: s.schemaOf(missing.Outbox), name: missing.Outbox.Table}
		if s.control.describe(ctx, now) != nil {
			return false
		}
		return !slices.ContainsFunc(missing.Columns, func(name string) bool { return now.column(name) == nil })
	})
}
