package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strconv"

	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// checkFile makes sure that the server's binlog is the one that a place is of. GTIDs
// alone do not tell: after RESET, or a crash with sync_binlog other than 1, a server
// gives the same ones to other transactions. A file that is gone tells nothing.
func (s *Source) checkFile(ctx context.Context, sv *server, from place) error {
	if from.file == "" {
		return nil
	}
	size, err := s.sizeOf(ctx, sv, from.file)
	if err != nil || size < 0 {
		return err
	}
	if uint64(size) < from.at {
		return lost("the server's binlog file %s ends at %d, and was read up to %d: the binlog was cut back or began anew", from.file, size, from.at)
	}
	// An event has 32 bits for its place: in a longer file it may be another one.
	if sv.flavour == mySQL || size > math.MaxUint32 {
		return nil
	}
	var text sql.NullString
	if err := s.control.db.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS(?, ?)", from.file, from.at).Scan(&text); err != nil {
		return fmt.Errorf("ask which transactions are in front of %s:%d: %w", from.file, from.at, mystore.Explain(err))
	}
	if !text.Valid {
		// No event ends there, or the file went meanwhile.
		if size, err = s.sizeOf(ctx, sv, from.file); err != nil || size < 0 {
			return err
		}
		return lost("no event of the server's binlog ends at %s:%d, up to where it was read: it began anew", from.file, from.at)
	}
	set, err := parseSet(text.String)
	if err != nil {
		return err
	}
	if !sameSet(set, from.set) {
		return lost("the server's binlog is at %q at %s:%d, and was at %q when it was read: it began anew", set, from.file, from.at, from.set)
	}
	return nil
}

// sizeOf returns the length of a binlog file in bytes; -1 if there is none.
func (s *Source) sizeOf(ctx context.Context, sv *server, file string) (int64, error) {
	rows, err := s.control.named(ctx, "SHOW BINARY LOGS")
	if denied(err) {
		return 0, sv.mayNotLook(err).Err()
	}
	if err != nil {
		return 0, fmt.Errorf("ask how long the binlog is: %w", mystore.Explain(err))
	}
	for _, row := range rows {
		if row["Log_name"] == file {
			return strconv.ParseInt(row["File_size"], 10, 64)
		}
	}
	return -1, nil
}
