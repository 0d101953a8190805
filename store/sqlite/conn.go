package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"modernc.org/sqlite"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// lockTimeout is the time for which a transaction retries while the database is locked. The
// retry waits are shorter than those of SQLite's busy handler. Otherwise services that write
// all the time would starve the relay.
const (
	lockTimeout  = 10 * time.Second
	minRetryWait = 100 * time.Microsecond
	maxRetryWait = time.Millisecond
)

// errReplaced reports that the connection's file has been replaced or deleted.
var errReplaced = errors.New("database file was replaced")

// Durability is the kind of crash that a commit survives.
type Durability bool

const (
	// Normal commits survive the crash of any process. A power failure may undo the latest
	// of them.
	Normal Durability = false
	// Full commits, and all commits before them, survive a power failure.
	Full Durability = true
)

// Conn is one connection to a database file. It serves one goroutine at a time. It uses the
// driver without the pool of database/sql, because every statement here belongs to a certain
// connection.
type Conn struct {
	path       string // absolute, without symbolic links
	file       os.FileInfo
	driver     driver.Conn
	statements map[string]driver.Stmt
	durability Durability
}

// Dial opens an existing file and switches it to WAL mode if necessary. The error is a
// *store.SetupError if that is impossible.
func Dial(ctx context.Context, path string) (*Conn, error) {
	c, err := DialAsIs(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := c.ensureWAL(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("open %s: %w", c.path, Explain(err))
	}
	return c, nil
}

// DialAsIs is Dial without the switch to WAL mode.
func DialAsIs(ctx context.Context, path string) (*Conn, error) {
	real, err := filepath.Abs(path)
	if err == nil {
		// SQLite names its -wal and -shm files after the resolved path, and so does the
		// lock.
		real, err = filepath.EvalSymlinks(real)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, &store.SetupError{
			Problem: "database file " + path + " does not exist",
			Remedy:  "check the path in the URL, or first start the service that creates the database",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find database: %w", err)
	}

	c := &Conn{path: real, statements: map[string]driver.Stmt{}}
	if c.file, err = os.Stat(real); err != nil {
		return nil, fmt.Errorf("find database: %w", err)
	}
	if !c.file.Mode().IsRegular() {
		return nil, &store.SetupError{Problem: real + " is not a file", Remedy: "check the path in the URL"}
	}

	uri := url.URL{Scheme: "file", Path: filepath.ToSlash(real)}
	// Without dqs=0, SQLite would read a missing column as a string literal.
	connector, err := sqlite.NewConnector(uri.String() + "?mode=rw&_dqs=0")
	if err != nil {
		return nil, err
	}
	if c.driver, err = connector.Connect(ctx); err != nil {
		return nil, fmt.Errorf("open %s: %w", real, Explain(err))
	}
	if err := c.prepare(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("open %s: %w", real, Explain(err))
	}
	return c, nil
}

// prepare configures a new connection.
func (c *Conn) prepare(ctx context.Context) error {
	for _, setting := range []string{
		"busy_timeout=0", // this package retries by itself
		"synchronous=NORMAL",
		"fullfsync=1", "checkpoint_fullfsync=1", // a sync reaches the disk on macOS too
	} {
		if err := c.pragma(ctx, setting); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) ensureWAL(ctx context.Context) error {
	var mode string
	read := func(row []driver.Value) error { mode = fmt.Sprint(row[0]); return nil }
	err := retry(ctx, lockTimeout, func() error { return c.Query(ctx, "PRAGMA journal_mode", nil, read) })
	if err != nil || mode == "wal" {
		return err
	}

	before := mode
	err = retry(ctx, lockTimeout, func() error { return c.execOnce(ctx, "PRAGMA journal_mode=WAL", read) })
	if err != nil && !IsLocked(err) {
		return err
	}
	if mode != "wal" || err != nil {
		problem := fmt.Sprintf("journal mode of the database is %s, must be WAL, and could not be changed", before)
		if err != nil {
			problem += ": " + err.Error()
		}
		return &store.SetupError{
			Problem: problem,
			Remedy:  "stop all programs that use the database and run `PRAGMA journal_mode=WAL;` in it; WAL requires a local file system",
		}
	}
	return nil
}

// Path returns the file's path, absolute and without symbolic links.
func (c *Conn) Path() string { return c.path }

// Replaced returns an error if the path no longer names the open file, for example after the
// database was restored from a copy.
func (c *Conn) Replaced() error {
	now, err := os.Stat(c.path)
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(now, c.file) {
		return fmt.Errorf("%s: %w", c.path, errReplaced)
	}
	return nil
}

// Close closes the connection.
func (c *Conn) Close() {
	for _, s := range c.statements {
		_ = s.Close() // it only repeats an error that was reported before
	}
	clear(c.statements)
	if c.driver != nil {
		_ = c.driver.Close() // committed transactions stay committed
		c.driver = nil
	}
}

// pragma changes a setting. SQLite applies it while it compiles the statement, so the
// statement is not kept. Compiling reads the schema first, which may be locked.
func (c *Conn) pragma(ctx context.Context, setting string) error {
	return retry(ctx, lockTimeout, func() error {
		return c.execOnce(ctx, "PRAGMA "+setting, func([]driver.Value) error { return nil })
	})
}

// execOnce runs a statement or a script that is not kept.
func (c *Conn) execOnce(ctx context.Context, sql string, each func([]driver.Value) error) error {
	rows, err := c.driver.(driver.QueryerContext).QueryContext(ctx, sql, nil)
	if err != nil {
		return err
	}
	return drain(rows, each)
}

func (c *Conn) statement(ctx context.Context, sql string) (driver.Stmt, error) {
	if s, ok := c.statements[sql]; ok {
		return s, nil
	}
	s, err := c.driver.(driver.ConnPrepareContext).PrepareContext(ctx, sql)
	if err == nil {
		c.statements[sql] = s
	}
	return s, err
}

// Script runs several statements that take no parameters.
func (c *Conn) Script(ctx context.Context, sql string) error {
	_, err := c.driver.(driver.ExecerContext).ExecContext(ctx, sql, nil)
	return err
}

// Exec runs a statement and returns the number of rows it changed. The connection keeps
// every compiled statement, so callers must use a bounded number of different texts.
func (c *Conn) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	s, err := c.statement(ctx, sql)
	if err != nil {
		return 0, err
	}
	result, err := s.(driver.StmtExecContext).ExecContext(ctx, namedValues(args))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Query runs a statement and calls each for every row. The values (int64, float64, string,
// []byte or nil) are valid until each returns; byte slices may be kept. The connection keeps
// every compiled statement, as for Exec.
func (c *Conn) Query(ctx context.Context, sql string, args []any, each func(row []driver.Value) error) error {
	s, err := c.statement(ctx, sql)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(ctx, namedValues(args))
	if err != nil {
		return err
	}
	return drain(rows, each)
}

// errStopIteration ends a query early.
var errStopIteration = errors.New("stop iteration")

// StopIteration returns the error with which a callback of Query stops the iteration. Query
// then returns nil.
func StopIteration() error { return errStopIteration }

func drain(rows driver.Rows, each func([]driver.Value) error) (err error) {
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
		if err == errStopIteration {
			err = nil
		}
	}()
	row := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(row); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := each(row); err != nil {
			return err
		}
	}
}

func namedValues(args []any) []driver.NamedValue {
	list := make([]driver.NamedValue, len(args))
	for i, v := range args {
		switch x := v.(type) {
		case int:
			v = int64(x)
		case bool:
			v = int64(0)
			if x {
				v = int64(1)
			}
		}
		list[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return list
}

// Write runs fn in a write transaction and commits it. It waits up to 10 s for the
// database's single write lock, then returns an error for which IsLocked is true. Once
// begun, it ignores the end of the context, so fn's statements must be short. fn may be
// called again after its changes were rolled back.
func (c *Conn) Write(ctx context.Context, d Durability, fn func(context.Context) error) error {
	return c.write(ctx, d, lockTimeout, fn)
}

func (c *Conn) write(ctx context.Context, d Durability, wait time.Duration, fn func(context.Context) error) error {
	if err := c.setDurability(ctx, d); err != nil {
		return err
	}
	// A cancellable context costs the driver a goroutine for each statement.
	uncancelled := context.WithoutCancel(ctx)
	return retry(ctx, wait, func() error { return c.transact(uncancelled, "BEGIN IMMEDIATE", fn) })
}

// Read runs fn in a transaction with one snapshot. Its statements end with the context.
func (c *Conn) Read(ctx context.Context, fn func(context.Context) error) error {
	return retry(ctx, lockTimeout, func() error { return c.transact(ctx, "BEGIN", fn) })
}

func (c *Conn) setDurability(ctx context.Context, d Durability) error {
	if c.durability == d {
		return nil
	}
	level := "synchronous=NORMAL"
	if d == Full {
		level = "synchronous=FULL"
	}
	if err := c.pragma(ctx, level); err != nil {
		return err
	}
	c.durability = d
	return nil
}

func (c *Conn) transact(ctx context.Context, begin string, fn func(context.Context) error) error {
	if _, err := c.Exec(context.WithoutCancel(ctx), begin); err != nil {
		return err
	}
	err := fn(ctx)
	if err == nil {
		_, err = c.Exec(context.WithoutCancel(ctx), "COMMIT")
	}
	if err != nil {
		// It fails if SQLite has rolled back by itself.
		_, _ = c.Exec(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return err
}

// retry repeats a call while the database is locked.
func retry(ctx context.Context, limit time.Duration, call func() error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	err := call()
	if !IsLocked(err) {
		return err
	}

	began := time.Now()
	again := backoff.Doubling{Min: minRetryWait, Max: maxRetryWait}
	for {
		if again.Wait(ctx) != nil {
			return context.Cause(ctx)
		}
		if err = call(); !IsLocked(err) {
			return err
		}
		if waited := time.Since(began); waited > limit {
			return fmt.Errorf("database locked by another connection for %s: %w", waited.Round(time.Millisecond), err)
		}
	}
}

// textOf returns a value as text. It is false for NULL.
func textOf(v driver.Value) (string, bool) {
	switch x := v.(type) {
	case nil:
		return "", false
	case string:
		return x, true
	case []byte:
		return string(x), true
	}
	return strings.TrimSpace(fmt.Sprint(v)), true
}

// BytesOf returns the bytes of a value, nil for NULL. They share the memory of a text: the
// driver made it for this row, and a copy of a large payload would double its price.
func BytesOf(v driver.Value) []byte {
	switch x := v.(type) {
	case []byte:
		if x == nil {
			return []byte{} // the driver's empty BLOB
		}
		return x
	case string:
		if x == "" {
			return []byte{}
		}
		return unsafe.Slice(unsafe.StringData(x), len(x))
	}
	return nil
}
