package sqlite

import (
	"context"
	"errors"
	"strings"

	"modernc.org/sqlite"

	"github.com/sluicebox/sluicebox/store"
)

// Primary result codes, https://www.sqlite.org/rescode.html.
const (
	codePerm       = 3
	codeBusy       = 5
	codeLocked     = 6
	codeReadOnly   = 8
	codeInterrupt  = 9
	codeIOErr      = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCantOpen   = 14
	codeProtocol   = 15
	codeTooBig     = 18
	codeConstraint = 19
	codeMismatch   = 20
	codeNotADB     = 26
)

// resultCode returns the primary result code of a SQLite error, 0 for any other.
func resultCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// IsLocked reports whether another connection's lock kept a statement from running.
func IsLocked(err error) bool { return resultCode(err) == codeBusy || resultCode(err) == codeLocked }

// missingTable reports whether a statement named a table that does not exist.
func missingTable(err error) bool {
	return resultCode(err) == 1 && strings.Contains(err.Error(), "no such table")
}

// Explain converts an error that a retry cannot fix to a *store.SetupError with a remedy. It
// returns other errors unchanged.
func Explain(err error) error {
	var setup *store.SetupError
	if err == nil || errors.As(err, &setup) {
		return err
	}

	explain := func(problem, remedy string) error {
		return &store.SetupError{Problem: problem + ": " + err.Error(), Remedy: remedy}
	}
	switch resultCode(err) {
	case codeReadOnly, codePerm:
		return explain("relay may not write to the database",
			"give its user write permission on the file and its directory, where SQLite keeps the -wal and -shm files")
	case codeCantOpen:
		return explain("database cannot be opened",
			"give the relay's user read and write permission on the file and its directory, where SQLite keeps the -wal and -shm files")
	case codeNotADB:
		return explain("file is not a SQLite database, or is encrypted", "check the path in the URL")
	case codeCorrupt:
		return explain("database is corrupt", "run PRAGMA integrity_check, and restore a backup or use the sqlite3 shell's .recover")
	}
	if missingTable(err) && strings.Contains(err.Error(), "sluicebox_") {
		return explain("relay tables do not exist", initHint)
	}
	return err
}

// asRefused converts an error of a table about a row to a *store.RefusedError: a constraint,
// an error raised by a trigger, or a value that does not fit. It passes other errors to
// Explain.
func asRefused(err error) error {
	switch resultCode(err) {
	case codeConstraint, codeMismatch, codeTooBig:
		return &store.RefusedError{Err: err}
	}
	return Explain(err)
}

// Unreachable reports whether an error means that the database was unusable for the moment,
// so that a retry may help.
func Unreachable(err error) bool {
	var setup *store.SetupError
	if err == nil || errors.As(Explain(err), &setup) || errors.Is(err, context.Canceled) {
		return false
	}
	switch resultCode(err) {
	case codeBusy, codeLocked, codeIOErr, codeFull, codeProtocol, codeInterrupt:
		return true
	}
	return errors.Is(err, errReplaced)
}
