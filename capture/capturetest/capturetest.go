// Package capturetest is a conformance suite for implementations of capture.Source. It knows
// only the contract. Everything it needs from a database is in [Harness] and [Database].
package capturetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Harness creates databases for the suite and declares the features of a kind of source.
type Harness struct {
	// Setup creates an empty outbox table in a separate database.
	Setup func(t *testing.T) Database
	// ShortTimeout does the same on a server that drops a client after 2 s of silence. Nil
	// skips the test of a pause.
	ShortTimeout func(t *testing.T) Database
	// Log declares that the source reads a log: rows come in commit order, batches have
	// positions, and Open can take a snapshot. Otherwise rows come in any order, and come
	// again while they are unsettled and not held.
	Log bool
	// RowPositions declares that the log has a position for every row, also inside a
	// transaction. Then every batch has one and may hold rows of several transactions.
	RowPositions bool
	// Bounded declares that the database limits its log in bytes.
	Bounded bool
	// Isolated is Setup for a database whose log no other test writes to. Nil is Setup.
	Isolated func(t *testing.T) Database
	// LogBytes returns the size of the log that inserting rows creates, within a third.
	LogBytes func(rows []Row) int64
	// Losses are ways to lose the log that a new snapshot fixes, by name. They keep the rows
	// of the table.
	Losses map[string]func(t *testing.T, db Database)
	// Faults keep a source from reading its log until an operator fixes them.
	Faults []Fault
	// Shutdown creates a database whose server stop shuts down gracefully. stop returns the
	// duration. Nil skips the test.
	Shutdown func(t *testing.T) (db Database, stop func() time.Duration)
}

// Fault takes the log away from a source and restores it.
type Fault struct {
	Name       string
	Break, Fix func(t *testing.T, db Database)
	// Remedy must be part of the error that names the fault.
	Remedy string
}

// Database is a database created by Setup. Its methods fail the test on an error and may be
// called from several goroutines.
type Database interface {
	// Source returns a source over the table. All sources have the same name. The suite
	// closes one before it requests the next.
	Source(t *testing.T, o Options) Source
	// Viewer opens views of the table.
	Viewer(t *testing.T) store.Viewer
	// Begin inserts rows in a transaction and leaves it open. end commits or rolls back, and
	// returns when that is done.
	Begin(t *testing.T, rows ...Row) (end func(commit bool))
	// Unrelated commits a write to a table that is not an outbox.
	Unrelated(t *testing.T)
	// Disconnect closes the source's connection to the server, if it has one.
	Disconnect(t *testing.T)
}

// Source is the source under test.
type Source interface {
	capture.Resumer
	Close()
}

// ReadyChecker is a source that lets a polling relay check whether the log can be opened by
// now.
type ReadyChecker interface {
	// Ready returns nil if it can, or the error that Open would return. It changes nothing.
	Ready(ctx context.Context) error
}

// Tables are the tables that a source opens. It is not safe for concurrent use.
type Tables struct {
	store.Viewer
	// Cleared counts the calls of ClearCheckpoint.
	Cleared int
	// Fail, if set, is the error that ClearCheckpoint returns.
	Fail error
	// Kept are the rows that Keep got, and KeptAt is the last checkpoint that it saved.
	Kept   []store.Item
	KeptAt store.Checkpoint
	// OnKeep, if set, is called before each Keep; an error fails it.
	OnKeep func(at store.Checkpoint, items []store.Item) error
}

// Keep implements capture.Tables.
func (t *Tables) Keep(_ context.Context, at store.Checkpoint, items []store.Item) error {
	if t.OnKeep != nil {
		if err := t.OnKeep(at, items); err != nil {
			return err
		}
	}
	if t.Kept = append(t.Kept, items...); at.Position != "" {
		t.KeptAt = at
	}
	return nil
}

// ClearCheckpoint implements capture.Tables.
func (t *Tables) ClearCheckpoint(context.Context) error {
	t.Cleared++
	return t.Fail
}

// Options are the options of a source of the suite.
type Options struct {
	// Outbox is the name to give the outbox.
	Outbox string
	// BatchRows is the maximum number of rows in a batch.
	BatchRows int
	// Held returns the ids that the suite has received.
	Held func(outbox string) []string
}

// Row is a row to insert.
type Row struct {
	ID      string
	Group   store.Group
	Payload string
}

const (
	outbox    = "shop"
	batchRows = 50
	// waitTimeout bounds every wait of the suite, so that a hanging test fails with its
	// name.
	waitTimeout = 30 * time.Second
	// maxShutdownTime is the limit for a graceful shutdown on a busy machine. It is less
	// than the 10 s after which a paused source gives up its connection.
	maxShutdownTime = 8 * time.Second
)

// isolated creates a database whose log no other test writes to.
func (h *Harness) isolated(t *testing.T) Database {
	t.Helper()
	if h.Isolated != nil {
		return h.Isolated(t)
	}
	return h.Setup(t)
}

// Run runs the suite except the tests of RunIsolated.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		log  bool // only for a source that reads a log
		test func(t *testing.T, db Database)
	}{
		{"all rows of concurrent writers", false, testAllRows},
		{"commit order of concurrent writers", true, testCommitOrder},
		{"rolled back", false, testRolledBack},
		{"larger than a batch", true, func(t *testing.T, db Database) { testLargeTransaction(t, db, h.RowPositions) }},
		{"reconnects", true, testReconnects},
		{"reopened at an acknowledged position", true, testReopenAcknowledged},
		{"reopened without an acknowledgement", true, testReopenUnacknowledged},
		{"checkpoint ahead of the acknowledgement", true, testReopenAhead},
		{"another origin", true, testOtherOrigin},
		{"span with an end", true, testUntil},
		{"markers", false, testMarks},
		{"position of an idle outbox", true, testIdlePosition},
		{"snapshot beside writers", true, testSnapshot},
		{"payloads", false, testPayloads},
		{"largest payload", true, testMaxPayload},
		{"groups", false, testGroups},
	} {
		if c.log && !h.Log {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.test(t, h.Setup(t)) })
	}

	if h.Log {
		t.Run("reconnect inside a transaction", func(t *testing.T) { testReconnectInTransaction(t, h) })
	}
	t.Run("retained log", func(t *testing.T) { testRetained(t, h) })
	RunLost(t, h)
	if h.Shutdown != nil {
		t.Run("shutdown", func(t *testing.T) { testShutdown(t, h) })
	}
	if h.ShortTimeout != nil {
		t.Run("pause", func(t *testing.T) { testPause(t, h.ShortTimeout(t)) })
	}
}

// RunIsolated runs the tests that look for leaked goroutines. No other test may run beside
// them.
func RunIsolated(t *testing.T, h Harness) {
	t.Run("end of the context", func(t *testing.T) { testContextEnd(t, h.Setup(t)) })
}

// RunLost runs the tests in which the log is lost.
func RunLost(t *testing.T, h Harness) {
	for _, name := range slices.Sorted(maps.Keys(h.Losses)) {
		t.Run("lost log/"+name, func(t *testing.T) { testLoss(t, h.Setup(t), h.Losses[name]) })
	}
	for _, f := range h.Faults {
		t.Run("no stream/"+f.Name, func(t *testing.T) { testFault(t, h.Setup(t), f) })
	}
}

// RunLayout runs the tests that depend on the layout of the table.
func RunLayout(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		log  bool
		test func(t *testing.T, db Database)
	}{
		{"all rows of concurrent writers", false, testAllRows},
		{"snapshot beside writers", true, testSnapshot},
		{"payloads", false, testPayloads},
		{"groups", false, testGroups},
	} {
		if !c.log || h.Log {
			t.Run(c.name, func(t *testing.T) { c.test(t, h.Setup(t)) })
		}
	}
}

// QuotedNames is an outbox whose names need quoting. Its state is in timestamp columns and
// its group inside JSON. Every column but these has a default.
func QuotedNames(name string) store.Outbox {
	return store.Outbox{Name: name, Table: `Out "Box"`, Kind: "an order", Layout: store.Layout{
		Name: "custom",
		Columns: store.Columns{
			ID: "Order", Group: "Meta 'data'", Payload: "select",
			Delivered: "deliveredAt", Failed: "größe", RetryCount: "$1",
		},
		State:     store.StateTimestamps,
		OrderBy:   []string{"table"},
		GroupPath: []string{"customer", "the id"},
	}}
}

// OpenWithoutCheckpoint opens a source without a checkpoint and closes the view of the
// snapshot without reading it.
func OpenWithoutCheckpoint(tb testing.TB, src capture.Resumer, tables capture.Tables) capture.OpenResult {
	tb.Helper()
	o, err := src.Open(tb.Context(), store.Checkpoint{}, tables)
	if err != nil {
		tb.Fatal(err)
	}
	o.View.Close()
	return o
}

// rowsOf returns n rows of group prefix, whose ids start with prefix.
func rowsOf(prefix string, n int) []Row {
	rows := make([]Row, n)
	for i := range rows {
		rows[i] = Row{
			ID:      fmt.Sprintf("%s-%04d", prefix, i),
			Group:   store.GroupOf(prefix),
			Payload: fmt.Sprintf(`{"row": %d}`, i),
		}
	}
	return rows
}

func commit(t *testing.T, db Database, rows ...Row) {
	t.Helper()
	db.Begin(t, rows...)(true)
}

func idsOf(rows []Row) []string {
	ids := make([]string, len(rows))
	for i := range rows {
		ids[i] = rows[i].ID
	}
	return ids
}

// open opens a source and closes the view, if there is one.
func open(t *testing.T, src Source, db Database, at store.Checkpoint) capture.OpenResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	tables := &Tables{Viewer: db.Viewer(t)}
	o, err := src.Open(ctx, at, tables)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if snapshot := o.View != nil; snapshot != (tables.Cleared > 0) {
		t.Errorf("snapshot taken: %v; the checkpoint was cleared %d times", snapshot, tables.Cleared)
	}
	if o.View != nil {
		o.View.Close()
	}
	return o
}
