package mysql

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// checkFile verifies that the server still has the binlog of a position. GTIDs alone
// cannot show that: after a RESET, or a crash with sync_binlog other than 1, a server
// assigns the same GTIDs to other transactions. If the file is gone, checkFile finds no
// difference.
func (s *Source) checkFile(ctx context.Context, sv *server, from binlogPosition) error {
	if from.file == "" {
		return nil
	}
	size, err := s.binlogFileSize(ctx, sv, from.file)
	if err != nil || size < 0 {
		return err
	}

	if uint64(size) < from.at {
		return logReplacedErrorf("binlog file %s ends at %d but was read up to %d: binlog was truncated or reset", from.file, size, from.at)
	}

	// An event has 32 bits for its offset, so in a longer file the offset may be another
	// one.
	if sv.flavour == mySQL || size > math.MaxUint32 {
		return nil
	}

	var text sql.NullString
	if err := s.control.db.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS(?, ?)", from.file, from.at).Scan(&text); err != nil {
		return fmt.Errorf("read GTID position of %s:%d: %w", from.file, from.at, mystore.Explain(err))
	}

	if !text.Valid {
		// No event ends there, or the file was purged meanwhile.
		if size, err = s.binlogFileSize(ctx, sv, from.file); err != nil || size < 0 {
			return err
		}
		return logReplacedErrorf("no binlog event ends at %s:%d, the last position that was read: binlog was reset", from.file, from.at)
	}

	set, err := mariaDB.parseGTIDSet(text.String)
	if err != nil {
		return err
	}

	if !set.Equal(from.set) {
		return logReplacedErrorf("GTID position is %q at %s:%d but was %q when it was read: binlog was reset", set, from.file, from.at, from.set)
	}
	return nil
}

// logReplacedError means that another log replaced the earlier one, even if its names are
// the same. It is a *capture.LostError.
type logReplacedError struct{ capture.LostError }

// Unwrap makes the error a *capture.LostError.
func (e *logReplacedError) Unwrap() error { return &e.LostError }

func logReplacedErrorf(format string, args ...any) error {
	return &logReplacedError{capture.LostError{Reason: fmt.Sprintf(format, args...)}}
}

// nextFile returns the file that a ROTATE event names. The ROTATE event at the start of a
// dump has no checksum.
func nextFile(raw []byte, checksummed bool) (string, error) {
	const fixed = 8 // the position in the next file
	if len(raw) < headerSize+fixed {
		return "", errTruncated
	}
	name := raw[headerSize+fixed:]
	if checksummed && len(name) > replication.BinlogChecksumLength {
		name = name[:len(name)-replication.BinlogChecksumLength]
	}
	return string(name), nil
}

// rotate moves to the start of another file.
func (c *coords) rotate(file string) {
	if file != c.file {
		*c = coords{file: file, at: 4} // after the magic number
	}
}

// checkCreated records the file's creation time from its FORMAT_DESCRIPTION event, or
// verifies that it is still the same file. On MariaDB, checkFile verifies that with
// BINLOG_GTID_POS.
func (c *coords) checkCreated(f flavour, raw []byte) error {
	if len(raw) < headerSize {
		return errTruncated
	}
	created := binary.LittleEndian.Uint32(raw) // the header begins with the timestamp
	if f == mariaDB || created == 0 {
		return nil
	}

	if c.created != 0 && c.created != created {
		when := func(seconds uint32) string { return time.Unix(int64(seconds), 0).UTC().Format(time.DateTime) }
		return logReplacedErrorf("binlog file %s was created at %s UTC, but the file that was read at %s UTC: binlog was reset", c.file, when(created), when(c.created))
	}

	c.created = created
	return nil
}

// binlog is a file of a server's binlog.
type binlog struct {
	name string
	size int64 // in bytes
}

// binlogs lists the files, the newest last. It returns the server's errors unchanged.
func (c *control) binlogs(ctx context.Context) ([]binlog, error) {
	rows, err := c.queryMaps(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return nil, err
	}

	list := make([]binlog, len(rows))
	for i, row := range rows {
		size, err := strconv.ParseInt(row["File_size"], 10, 64)
		if err != nil {
			return nil, err
		}
		list[i] = binlog{row["Log_name"], size}
	}

	return list, nil
}

// binlogFileSize returns the length of a binlog file in bytes; -1 if it is gone. A file
// newer than the server's newest one belonged to another log.
func (s *Source) binlogFileSize(ctx context.Context, sv *server, file string) (int64, error) {
	list, err := s.control.binlogs(ctx)
	if denied(err) {
		return 0, sv.monitorGrantFault(err).Err()
	}
	if err != nil {
		return 0, fmt.Errorf("list binlog files: %w", mystore.Explain(err))
	}

	for _, b := range list {
		if b.name == file {
			return b.size, nil
		}
	}

	if len(list) > 0 {
		if newest := list[len(list)-1].name; isLaterFile(file, newest) {
			return 0, logReplacedErrorf("newest binlog file is %s, but the log was read up to %s: binlog was reset", newest, file)
		}
	}

	return -1, nil
}

// isLaterFile reports whether a file of a binlog comes after another, by the numbers at
// the end of their names.
func isLaterFile(file, other string) bool {
	number, otherNumber := path.Ext(file), path.Ext(other)
	a, errA := strconv.ParseUint(strings.TrimPrefix(number, "."), 10, 64)
	b, errB := strconv.ParseUint(strings.TrimPrefix(otherNumber, "."), 10, 64)
	sameLog := strings.TrimSuffix(file, number) == strings.TrimSuffix(other, otherNumber)
	return sameLog && errA == nil && errB == nil && a > b
}

// maxClockSkew is how far a server's clock may have been set back, or a commit time may
// be ahead of it, for example because another server set the time. The search for a time
// starts this much earlier.
const maxClockSkew = time.Hour

// positionAtTime returns a position before everything committed at or after a time. If
// the binlog starts too late for that, it returns a *capture.LostError. Only a dump shows
// when a file was created, so it probes few of many files.
func (s *Source) positionAtTime(ctx context.Context, sv *server, since time.Time) (binlogPosition, error) {
	list, purged, err := s.readPurged(ctx, sv)
	if err != nil {
		return binlogPosition{}, err
	}

	from := binlogPosition{set: purged}
	created, err := s.fileCreatedAt(ctx, sv, from)
	if err != nil {
		return binlogPosition{}, err
	}

	if since.Before(created) {
		return binlogPosition{}, fault.Lostf("binlog begins at %s UTC with file %s", created.UTC().Format(time.DateTime), list[0].name)
	}
	return s.lastFileBefore(ctx, sv, list, from, since), nil
}

// lastFileBefore returns the start of the last file that was created early enough for a
// time. If the server does not report it, lastFileBefore returns an earlier position, at
// the earliest from.
func (s *Source) lastFileBefore(ctx context.Context, sv *server, list []binlog, from binlogPosition, since time.Time) binlogPosition {
	for lo, hi := 0, len(list); hi-lo > 1; {
		mid := (lo + hi) / 2
		var created time.Time
		set, err := s.gtidsBefore(ctx, sv, list[mid].name)
		if err == nil {
			created, err = s.fileCreatedAt(ctx, sv, binlogPosition{set: set})
		}
		switch {
		case err != nil:
			return from
		case since.Before(created.Add(maxClockSkew)):
			hi = mid
		default:
			lo, from = mid, binlogPosition{set: set}
		}
	}

	return from
}

// fileCreatedAt returns the creation time of the file with which a dump from a position
// starts: the file that starts there, or a later one if there is nothing in between.
// Times have whole seconds, so it returns the end of that second, the latest possible
// commit before the file.
func (s *Source) fileCreatedAt(ctx context.Context, sv *server, from binlogPosition) (time.Time, error) {
	found, err := s.tryDump(ctx, sv, from)
	if err != nil {
		return time.Time{}, err
	}
	return found.created.Add(time.Second), nil
}

// readPurged returns the files of the server's binlog, and the transactions that it no
// longer holds or never held.
func (s *Source) readPurged(ctx context.Context, sv *server) ([]binlog, mysql.GTIDSet, error) {
	list, err := s.control.binlogs(ctx)
	if err == nil && len(list) == 0 {
		err = errors.New("server has no binlog file")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list binlog files: %w", mystore.Explain(err))
	}

	if sv.flavour == mariaDB {
		set, err := s.gtidsBefore(ctx, sv, list[0].name)
		return list, set, err
	}

	text, err := s.control.purgedGTIDs(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read gtid_purged: %w", mystore.Explain(err))
	}

	set, err := sv.flavour.parseGTIDSet(text)
	return list, set, err
}

// gtidsBefore returns the transactions before a file of the binlog. On MySQL it includes
// gtid_purged, because an administrator can declare transactions purged that no file
// lists.
func (s *Source) gtidsBefore(ctx context.Context, sv *server, file string) (mysql.GTIDSet, error) {
	text, err := "", error(nil)
	if sv.flavour == mariaDB {
		text, err = s.control.gtidPosAtStart(ctx, file)
	} else if text, err = s.previousGTIDs(ctx, sv, file); err == nil {
		var purged string
		purged, err = s.control.purgedGTIDs(ctx)
		text = strings.Trim(text+","+purged, ",")
	}
	if err != nil {
		return nil, fmt.Errorf("read start position of binlog file %s: %w", file, mystore.Explain(err))
	}
	return sv.flavour.parseGTIDSet(text)
}

// errFileGone means that a file was purged after it was listed.
var errFileGone = errors.New("server returned no position; the file may have been purged")

// gtidPosAtStart returns MariaDB's GTID position at the start of a file.
func (c *control) gtidPosAtStart(ctx context.Context, file string) (string, error) {
	const begin = 4 // after the magic number
	var text sql.NullString
	err := c.db.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS(?, ?)", file, begin).Scan(&text)
	if err == nil && !text.Valid {
		err = errFileGone
	}
	return text.String, err
}

// previousGTIDs returns the content of MySQL's Previous_gtids event, the second of a
// file. Only the streaming role may read it.
func (s *Source) previousGTIDs(ctx context.Context, sv *server, file string) (string, error) {
	if strings.ContainsAny(file, `'\`) {
		return "", errors.New("file name cannot be quoted")
	}
	d := &dump{}
	stop := context.AfterFunc(ctx, d.abort)
	defer stop()
	c, err := s.openSession(ctx, d, sv)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // the result does not depend on it
	events, err := c.Execute("SHOW BINLOG EVENTS IN '" + file + "' LIMIT 2")
	if err != nil {
		return "", err
	}

	for row := range events.Values {
		kind, err := events.GetStringByName(row, "Event_type")
		if err == nil && kind == "Previous_gtids" {
			return events.GetStringByName(row, "Info")
		}
	}

	return "", errFileGone
}

// purgedGTIDs returns the transactions that MySQL has executed and purged from its
// binlog.
func (c *control) purgedGTIDs(ctx context.Context) (text string, err error) {
	err = c.db.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_purged").Scan(&text)
	return text, err
}

// LostReasons implements capture.RetentionChecker. The log behind a position is lost if
// its file is gone and the server has purged transactions that are not in the position.
func (s *Source) LostReasons(ctx context.Context, of []store.Checkpoint) ([]string, error) {
	sv, err := s.control.identify(ctx)
	if err != nil {
		return nil, err
	}

	list, purged, err := s.readPurged(ctx, sv)
	if err != nil {
		return nil, err
	}

	reasons := make([]string, len(of))
	for i := range of {
		from, err := parsePosition(of[i].Position)
		exists := slices.ContainsFunc(list, func(file binlog) bool { return file.name == from.file })
		if err == nil && of[i].Origin == sv.origin() && !exists && !contains(from.set, purged) {
			reasons[i] = "server purged the binlog after it; the first remaining file is " + list[0].name
		}
	}

	return reasons, nil
}

// Retained measures the binlog behind the acknowledged position, or behind the start
// position of Open before the first acknowledgement. The size includes all binlog that
// the relay has yet to process, even if the server has purged part of it.
//
// Limit is the server's limit for its binlog in bytes. Most servers limit it only by
// time: once half of that time has passed since the last acknowledgement, Limit is the
// current size, so that the relay does not fall further behind.
func (s *Source) Retained(ctx context.Context) (capture.RetainedLog, error) {
	list, err := s.control.binlogs(ctx)
	if err != nil {
		return capture.RetainedLog{}, fmt.Errorf("list binlog files: %w", mystore.Explain(err))
	}

	acked := s.acks.Last()
	if acked == nil {
		return capture.RetainedLog{}, nil
	}

	var retained capture.RetainedLog
	for _, file := range slices.Backward(list) {
		retained.Bytes += file.size
		if file.name == acked.Parsed.file {
			retained.Bytes -= min(file.size, int64(acked.Parsed.at))
			break
		}
	}

	retained.Limit = s.server.limit()
	if expiry := s.server.expiry(); expiry > 0 && retained.Bytes > 0 && time.Since(acked.At) > expiry/2 {
		retained.Limit = retained.Bytes
	}
	return retained, nil
}

// limit returns the server's limit for its binlog in bytes; 0 if there is none. MariaDB
// has the setting since 11.4, Percona Server has its own.
func (sv *server) limit() int64 {
	for _, name := range []string{"max_binlog_total_size", "binlog_space_limit"} {
		if n, err := strconv.ParseInt(sv.setting(name), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return 0
}
