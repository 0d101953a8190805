package mysql

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
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

	set, err := parseSet(text.String)
	if err != nil {
		return err
	}

	if !sameSet(set, from.set) {
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
