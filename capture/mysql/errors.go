package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// reason is what error 1236 stands for: the number is that of all that keeps a
// server from sending its binlog.
type reason int

const (
	otherReason      reason = iota
	clashReason             // the same server id, in MariaDB, or the same UUID, in MySQL: the older stream is ended
	lostReason              // what follows is not there, or never was
	noBinlogReason          // there is no binlog
	gtidReason              // its transactions have no names
	noServerIDReason        // the server has none
)

// reasonOf tells by the text (rpl_binlog_sender.cc of MySQL, sql_repl.cc of
// MariaDB).
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

// serverIDClashError says that somebody else reads the binlog under the relay's server id.
type serverIDClashError struct{ message string }

func (e *serverIDClashError) Error() string {
	return "the server has ended the stream, for another one came under the same server id: " + e.message
}

// explainDump tells what the server says about a dump.
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
		return noStreamError("the server writes no binlog: "+e.Message, "turn log_bin on")
	case gtidReason:
		return noStreamError("the server does not name its transactions: "+e.Message, "set gtid_mode to ON")
	case noServerIDReason:
		return noStreamError("the server sends its binlog to nobody: "+e.Message, "set its server_id")
	}
	return &fault.UnreadableLogError{Err: err}
}

// streamGrantFault is the fault of a role that the server sends no binlog to.
func (s *Source) streamGrantFault(sv *server, d *dump, e *mysql.MyError) fault.Fault {
	f := fault.Fault{Subject: "stream", Problem: fmt.Sprintf("role %s may not stream: %s", s.stream.User, e.Message), Instructions: "as an administrator"}
	if d.loggedIn { // the same number stands for a wrong password
		role := sv.user
		if s.stream.User != s.control.config.User {
			role = s.stream.User + "@%"
		}
		f.Statements = []string{"GRANT REPLICATION SLAVE ON *.* TO " + mystore.Account(role) + ";"}
		return f
	}
	f.Instructions = "check the user and the password of the URL, and that the role may log in from here"
	return f
}

const (
	// clashTimeout is how long two streams may end each other before it counts as a
	// clash for good: the other one may be the predecessor of a new leader. After
	// clashResetInterval without it, it begins anew.
	clashTimeout       = 10 * time.Second
	clashResetInterval = 30 * time.Second
)

// serverIDClash is since when another stream has ended this one again and again.
type serverIDClash struct{ first, last time.Time }

// count says what becomes of one more time.
func (c *serverIDClash) count(now time.Time, id uint32, err *serverIDClashError) error {
	if now.Sub(c.last) > clashResetInterval {
		c.first = now
	}
	c.last = now
	if now.Sub(c.first) < clashTimeout {
		return err
	}
	*c = serverIDClash{}
	return noStreamError(fmt.Sprintf("another replica or relay reads the binlog under the server id %d, and the two end each other's streams: %s", id, err.message),
		"give each a number of its own (source.server-id; SHOW REPLICA HOSTS lists those that are there)")
}

// classifyEnd says what becomes of a run that ended with an error.
func (s *Source) classifyEnd(ctx context.Context, err error, progress bool) error {
	var other *serverIDClashError
	if errors.As(err, &other) {
		return s.clash.count(time.Now(), s.cfg.ServerID, other)
	}
	var misfit *layoutMismatchError
	if errors.As(err, &misfit) {
		return s.explainLayoutMismatch(misfit)
	}
	if progress {
		s.mismatchedTable = ""
	}
	return s.failures.Classify(s.explainMissingColumns(ctx, err), progress, s.resume.Last())
}

// explainLayoutMismatch says what becomes of a table that the log describes otherwise than it is:
// a new cut goes on behind the change. If the next rows do not fit either, the
// table has columns that the server does not show.
func (s *Source) explainLayoutMismatch(e *layoutMismatchError) error {
	if key := e.table.schema + "." + e.table.name; s.mismatchedTable != key {
		s.mismatchedTable = key
		return &capture.LostError{Reason: fmt.Sprintf("what follows %s was written before a table was changed: %v", s.resume.Last(), e)}
	}
	s.mismatchedTable = ""
	f := fault.Fault{Subject: "tables", Problem: fmt.Sprintf("the binlog does not name its columns, and without names they cannot be told: %v", e)}
	if s.server.flavour == mariaDB {
		f.Statements, f.Instructions = []string{"SET GLOBAL binlog_row_metadata = FULL;"}, "as an administrator, and put `binlog_row_metadata=FULL` into the server's configuration"
	} else {
		f.Statements, f.Instructions = []string{"SET PERSIST binlog_row_metadata = FULL;"}, "as an administrator"
	}
	return f.Err()
}

// explainMissingColumns tells a table that has lost a column from rows that are older
// than the column.
func (s *Source) explainMissingColumns(ctx context.Context, err error) error {
	var missing *missingColumnError
	if !errors.As(err, &missing) {
		return err
	}
	now := &table{schema: missing.schema, name: missing.name}
	if s.describe(ctx, now) != nil {
		return err
	}
	for _, name := range missing.columns {
		if now.column(name) == nil {
			return err
		}
	}
	return &capture.LostError{Reason: fmt.Sprintf("the binlog shows table %s.%s without %s, which it has by now", missing.schema, missing.name, strings.Join(missing.columns, " and "))}
}
