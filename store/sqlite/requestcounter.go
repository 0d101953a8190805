package sqlite

import (
	"context"
	"database/sql/driver"
	"sync"
)

// requestCounter counts the wishes of a relay, by a connection of its own. It holds nothing
// between two looks, and no look waits for a lock of the database.
type requestCounter struct {
	path, relay string
	requests    int64 // as of the latest look; the looker's alone

	mu      sync.Mutex // held by the look, or by the end
	closed  bool
	conn    *Conn
	version int64 // of the database, for conn, when n was read; -1 if it was not
}

// refresh counts anew if something was written since. A count that cannot be had stays as
// it is, but that of a table that is not there.
func (w *requestCounter) refresh(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil && w.conn.Replaced() != nil {
		w.drop()
	}
	if w.closed || !w.dial(ctx) {
		return
	}
	if err := w.count(context.WithoutCancel(ctx)); err != nil && !IsLocked(err) {
		w.drop()
	}
}

func (w *requestCounter) dial(ctx context.Context) bool {
	if w.conn == nil {
		w.conn, _ = DialAsIs(ctx, w.path) // the next look tries again
		w.version = -1
	}
	return w.conn != nil
}

// count reads the table if another connection has changed the file since it was read:
// PRAGMA data_version says so without a look at any page.
func (w *requestCounter) count(ctx context.Context) error {
	version, n, there := int64(0), int64(0), false
	err := w.conn.Query(ctx, "PRAGMA data_version", nil, func(row []driver.Value) error { version = numberAt(row, 0); return nil })
	if err != nil || version == w.version {
		return err
	}
	if there, err = hasTable(ctx, w.conn, "sluicebox_wish"); err == nil && there {
		err = w.conn.Query(ctx, "SELECT n FROM sluicebox_wish WHERE name = ?", []any{w.relay}, func(row []driver.Value) error { n = numberAt(row, 0); return nil })
	}
	if err == nil {
		w.requests, w.version = n, version
	}
	return err
}

func (w *requestCounter) drop() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// close gives the connection up.
func (w *requestCounter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.drop()
}
