// Package capturetest holds one suite that every capture.Source passes. It knows
// the contract only; what it needs from a database is in [Harness] and
// [Database].
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

// Harness makes databases for the suite and says what a kind of source can do.
type Harness struct {
	// Setup makes an empty outbox table in a database of its own.
	Setup func(t *testing.T) Database
	// ShortTimeout does the same on a server that gives up a client which is
	// silent for 2 s. Nil leaves the test of a pause out.
	ShortTimeout func(t *testing.T) Database
	// Log says that the source reads a log: rows come in commit order, batches
	// have positions, and a cut is possible. Without it, rows come in any order
	// and come again while they are unsettled and not held.
	Log bool
	// RowPositions says that the log has a position for every row, also inside a transaction:
	// then every batch has one, and may hold rows of several transactions.
	RowPositions bool
	// Bounded says that the database bounds its log in bytes.
	Bounded bool
	// Isolated does what Setup does, where nobody else writes into the log. Nil is
	// Setup.
	Isolated func(t *testing.T) Database
	// LogBytes tells how many bytes of log it makes to insert rows, good to a third.
	LogBytes func(rows []Row) int64
	// Losses are ways in which the log is lost, by name, that a new cut mends.
	// The rows of the table stay.
	Losses map[string]func(t *testing.T, db Database)
	// Faults are what keeps a source from reading its log until an operator
	// mends it.
	Faults []Fault
	// Shutdown makes a database whose server stop shuts down in an orderly way,
	// and tells how long that took. Nil leaves the test of it out.
	Shutdown func(t *testing.T) (db Database, stop func() time.Duration)
}

// Fault takes the log away from a source and gives it back.
type Fault struct {
	Name       string
	Break, Fix func(t *testing.T, db Database)
	// Remedy is in the error that names the fault.
	Remedy string
}

// Database is what Setup made. Its methods fail the test on an error and may be
// called from several goroutines.
type Database interface {
	// Source returns a source over the table; all have the same name. The suite
	// closes it before it asks for the next.
	Source(t *testing.T, o Options) Source
	// Viewer opens views of the table.
	Viewer(t *testing.T) store.Viewer
	// Begin inserts rows in a transaction and leaves it open. end commits it or
	// rolls it back, and returns when that is done.
	Begin(t *testing.T, rows ...Row) (end func(commit bool))
	// Unrelated commits a write to a table that is no outbox.
	Unrelated(t *testing.T)
	// Disconnect ends the source's connection to the server, if it has one.
	Disconnect(t *testing.T)
}

// Source is what the suite tests.
type Source interface {
	capture.Resumer
	Close()
}

// ReadyChecker is a source that tells a relay that polls whether it could open its
// log by now.
type ReadyChecker interface {
	// Ready returns nil if it could, else what Open would return. It changes
	// nothing.
	Ready(ctx context.Context) error
}

// Tables are a database's tables as a source opens them. It is not safe for
// concurrent use.
type Tables struct {
	store.Viewer
	// Cleared counts how often the checkpoint was forgotten.
	Cleared int
	// Fail, if set, is what Forget answers.
	Fail error
}

// ClearCheckpoint implements capture.Tables.
func (t *Tables) ClearCheckpoint(context.Context) error {
	t.Cleared++
	return t.Fail
}

// Options are what the suite's sources differ in.
type Options struct {
	// Outbox is the name to give the outbox.
	Outbox string
	// BatchRows bounds the rows of a batch.
	BatchRows int
	// Held returns the rows that the suite has received.
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
	// waitTimeout bounds every wait of the suite: what hangs fails by name.
	waitTimeout = 30 * time.Second
	// maxShutdownTime is how long an orderly shutdown may take on a busy machine: less than the
	// 10 s after which a source gives up a connection that it does not read.
	maxShutdownTime = 8 * time.Second
)

// Run runs the suite, but for what RunIsolated runs.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		log  bool // only for a source of a log
		test func(t *testing.T, db Database)
	}{
		{"all rows of concurrent writers", false, testAllRows},
		{"commit order of concurrent writers", true, testCommitOrder},
		{"rolled back", false, testRolledBack},
		{"larger than a batch", true, func(t *testing.T, db Database) { testLargeTransaction(t, db, h.RowPositions) }},
		{"goes on through cuts", true, testFollowThroughCuts},
		{"cut inside a transaction", true, func(t *testing.T, db Database) { testCutInside(t, db, h.RowPositions) }},
		{"reopened at an acknowledged position", true, testReopenAcknowledged},
		{"reopened without an acknowledgement", true, testReopenUnacknowledged},
		{"checkpoint ahead of the acknowledgement", true, testReopenAhead},
		{"another origin", true, testOtherOrigin},
		{"span with an end", true, testUntil},
		{"markers", false, testMarks},
		{"position of an idle outbox", true, testIdlePosition},
		{"cut beside writers", true, testCut},
		{"payloads", false, testPayloads},
		{"payloads that are carried", true, testCarried},
		{"groups", false, testGroups},
	} {
		if c.log && !h.Log {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.test(t, h.Setup(t)) })
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

// RunIsolated runs the part of the suite beside which no other test may run: it looks for
// goroutines that are left.
func RunIsolated(t *testing.T, h Harness) {
	t.Run("end of the context", func(t *testing.T) { testContextEnd(t, h.Setup(t)) })
}

// RunLost runs the part of the suite in which the log is lost.
func RunLost(t *testing.T, h Harness) {
	for _, name := range slices.Sorted(maps.Keys(h.Losses)) {
		t.Run("lost log/"+name, func(t *testing.T) { testLoss(t, h.Setup(t), h.Losses[name]) })
	}
	for _, f := range h.Faults {
		t.Run("no stream/"+f.Name, func(t *testing.T) { testFault(t, h.Setup(t), f) })
	}
}

// RunLayout runs the part of the suite that a table's layout has a say in.
func RunLayout(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		log  bool
		test func(t *testing.T, db Database)
	}{
		{"all rows of concurrent writers", false, testAllRows},
		{"cut beside writers", true, testCut},
		{"payloads", false, testPayloads},
		{"groups", false, testGroups},
	} {
		if !c.log || h.Log {
			t.Run(c.name, func(t *testing.T) { c.test(t, h.Setup(t)) })
		}
	}
}

// QuotedNames is an outbox whose names need their quotes, with times for its state
// and the group inside of JSON. Every column but these three has a default.
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

// OpenWithoutCheckpoint opens a source without a checkpoint, whose log so begins anew, does without
// the rows of the cut, and returns the opening.
func OpenWithoutCheckpoint(tb testing.TB, src capture.Resumer, tables capture.Tables) capture.OpenResult {
	tb.Helper()
	o, err := src.Open(tb.Context(), store.Checkpoint{}, tables)
	if err != nil {
		tb.Fatal(err)
	}
	o.View.Close()
	return o
}

// rowsOf makes n rows with ids of a common prefix, in group g.
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

// open opens a source, closes the view that it may have, and returns the
// opening.
func open(t *testing.T, src Source, db Database, at store.Checkpoint) capture.OpenResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	tables := &Tables{Viewer: db.Viewer(t)}
	o, err := src.Open(ctx, at, tables)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if cut := o.View != nil; cut != (tables.Cleared > 0) {
		t.Errorf("the log begins anew: %v; the checkpoint was forgotten %d times", cut, tables.Cleared)
	}
	if o.View != nil {
		o.View.Close()
	}
	return o
}
