package sqlite

import (
	"context"
	"database/sql/driver"
	"sync"

	"github.com/sluicebox/sluicebox/store/ledger"
)

// requestCounter counts the requests of a relay, on its own connection. It holds no
// transaction between two refreshes, and no refresh waits for a lock of the database.
type requestCounter struct {
	path, relay string
	requests    int64 // as of the latest refresh; only the pinging goroutine uses it

	mu      sync.Mutex // held by refresh and close
	closed  bool
	conn    *Conn
	version int64 // data_version of conn when requests was read; -1 before
}

// refresh reads the count again if the file has changed. If it cannot be read, the old count
// stays; a missing table counts 0.
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
		w.conn, _ = DialAsIs(ctx, w.path) // the next refresh tries again
		w.version = -1
	}
	return w.conn != nil
}

// count reads the table if another connection has changed the file since the last read.
// PRAGMA data_version detects that without reading a page.
func (w *requestCounter) count(ctx context.Context) error {
	version, n, exists := int64(0), int64(0), false
	err := w.conn.Query(ctx, "PRAGMA data_version", nil, func(row []driver.Value) error { version = numberAt(row, 0); return nil })
	if err != nil || version == w.version {
		return err
	}
	if exists, err = hasTable(ctx, w.conn, "sluicebox_record"); err == nil && exists {
		err = w.conn.Query(ctx, countRequests, []any{w.relay, ledger.RelayKind, ledger.Requests}, func(row []driver.Value) error { n = numberAt(row, 0); return nil })
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

// close closes the connection.
func (w *requestCounter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.drop()
}
