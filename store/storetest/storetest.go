// Package storetest is the test suite that every implementation of Store passes, once
// for each kind of state. It depends only on the contract; a database provides [Harness]
// and [Database].
package storetest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Harness creates databases for the suite.
type Harness interface {
	// Setup creates empty tables for the outboxes, with the columns of their layouts. It
	// drops the tables of an earlier Setup and the relay's tables.
	//
	//   - An id column holds at least 26 characters.
	//   - Payload columns accept any text.
	//   - Error columns hold 2000 characters or more.
	//   - OrderBy columns hold times.
	Setup(t *testing.T, outboxes ...store.Outbox) Database
}

// Resetter is a Harness that empties tables faster than it creates them.
type Resetter interface {
	Harness
	// Empty is Setup for the outboxes of the last Setup. It deletes the rows of their
	// tables and of the relay's tables, but not the version that Install checks.
	Empty(t *testing.T, outboxes ...store.Outbox) Database
}

// Store is a store with the ledger that it embeds.
type Store interface {
	store.Tables
	store.Checkpoints
	store.Holds
	store.SpillStore
	store.Requester
	store.ReplayLister
	store.ReplayWriter
	store.ReplayFinisher
	store.ReplayReader
	LegRows(ctx context.Context, rows []store.Ref) ([]*store.LegRow, error)
	SpillLegs(ctx context.Context, epoch store.Epoch, items []store.Item, rows []store.LegRow) error
	SettleLegs(ctx context.Context, epoch store.Epoch, ends []store.LegEnd) error
}

// Database is the result of Setup. Its methods fail the test on an error.
type Database interface {
	Changer
	// Store opens a store of the relay "suite", or of another. It may be called several
	// times: the stores compete for the same tables. The suite closes them.
	Store(t *testing.T, cfg Config) Store
	// Begin inserts pending rows in a transaction and leaves it open. txn is the Txn that
	// the source would report, or 0 if the database never captures a row before a claim can
	// see it.
	Begin(t *testing.T, outbox string, rows ...Row) (txn store.Txn, commit func())
	// Read returns the contents of a row.
	Read(t *testing.T, outbox, id string) RowContent
}

// Changer changes rows as another program would.
type Changer interface {
	// Set writes a status into a row, with the time of its claim or settlement.
	Set(t *testing.T, outbox, id string, status store.Status, at time.Time)
	// Delete deletes a row.
	Delete(t *testing.T, outbox, id string)
	// SetRefused sets the refused count of a replay of the relay "suite".
	SetRefused(t *testing.T, job string, n int64)
}

// Schemaless is a Database whose tables have no columns: a layout names fields of rows, and
// a row may lack any of them.
type Schemaless interface {
	Database
	// Schemaless is a marker.
	Schemaless()
}

// Numberer is a Database whose tables do not record the insertion order of rows by default.
type Numberer interface {
	Database
	// Number adds a column with the insertion order to an outbox's empty table, until the
	// test ends.
	Number(t *testing.T, outbox string)
}

// ColumnRenamer is a Harness whose database does not accept all column names.
type ColumnRenamer interface {
	Harness
	// Rename returns the layout with accepted names.
	Rename(store.Layout) store.Layout
}

// Config configures a store of the suite.
type Config struct {
	// Outboxes are the outboxes given to Setup, or others in tests of Check.
	Outboxes []store.Outbox
	// TakeoverTimeout is how long another processor's claim holds a row.
	TakeoverTimeout time.Duration
	// Name is the relay's name; "" means "suite".
	Name string
	// Holder is the relay's holder name.
	Holder string
}

// Row is a row to insert. Fields without a column in the layout are ignored.
type Row struct {
	ID      string
	Kind    string
	Group   store.Group
	Payload string
	// Created is the value of each OrderBy column.
	Created time.Time
}

// GroupText returns the content of the group column for group g, NULL if g is not valid. If
// the group is inside JSON, a row without a group has JSON too.
func GroupText(l *store.Layout, g store.Group) sql.NullString {
	if len(l.GroupPath) == 0 {
		return sql.NullString{String: g.Name, Valid: g.Valid}
	}

	var value any = map[string]string{"other": "x"}
	if g.Valid {
		value = g.Name
		for _, key := range slices.Backward(l.GroupPath) {
			value = map[string]any{"other": 1, key: value}
		}
	}

	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // only strings and maps of strings
	}

	return sql.NullString{String: string(text), Valid: true}
}

// RowContent is the content of a row. Status is Pending for a row of a table without state.
type RowContent struct {
	Exists     bool
	Status     store.Status
	RetryCount int
	// Code is the number in the status column under store.StateNumbers.
	Code  int
	Error string // "" if NULL
	// Claimed, Settled and Delivered are the times in the columns of these names, zero if NULL
	// or without a column.
	Claimed, Settled, Delivered time.Time
	// Receipt has the values in the columns of the layout's Record, as texts and joined by
	// commas. NULL is ~.
	Receipt string
}

// callTimeout limits every call of the suite, so that a hanging call fails by name.
const callTimeout = time.Minute

// CoreLayout returns the layout that covers the differences between servers of one kind.
// The other layouts of the suite differ only in their statements.
func CoreLayout() string { return "words" }

// aboutSessions matches the names of further tests for RunSessions.
var aboutSessions = regexp.MustCompile("open transaction|old epoch|close")

// RunSessions runs the tests of what a store does with its sessions: locks, epochs, open transactions and Close.
func RunSessions(t *testing.T, open func(t *testing.T) Harness) {
	s := &suite{harness: open(t), layout: store.FlowCatalyst()}
	all := slices.Concat(leadTests(), lockTests())
	for _, test := range slices.Concat(tests(), spillTests(), replayTests()) {
		if aboutSessions.MatchString(test.name) {
			all = append(all, test)
		}
	}
	s.run(t, all)
}

// run runs those of the tests that apply to the layout.
func (s *suite) run(t *testing.T, tests []test) {
	for _, test := range tests {
		if test.only == nil || test.only(&s.layout) {
			t.Run(test.name, func(t *testing.T) { test.run(s, t) })
		}
	}
}

// Run runs the suite with the named layouts, or with all of them. The layouts run in parallel,
// because a test mostly waits, so open returns a harness with a database of its own.
func Run(t *testing.T, open func(t *testing.T) Harness, layouts ...string) {
	for _, kind := range []struct {
		name   string
		layout store.Layout
	}{
		{"words", store.FlowCatalyst()},
		{"numbers", store.OutboxMessages()},
		{"timestamps", timestamps()},
		{"timestamps-without-claim", withoutClaim(timestamps())},
		{"none", stateless()},
		{"odd-names", oddNames()},
		{"unclaimed", unclaimed(store.FlowCatalyst())},
		{"two-words", twoWords()},
		{"boolean", booleans()},
		{"lease", leases()},
		{"lease-words", leasedWords()},
		{"deleted", deletes()},
	} {
		if len(layouts) > 0 && !slices.Contains(layouts, kind.name) {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			h := open(t)
			s := &suite{harness: h, layout: kind.layout}
			if n, ok := h.(ColumnRenamer); ok {
				s.layout = n.Rename(s.layout)
			}
			all := slices.Concat(leadTests(), tests(), spillTests(), lockTests(), deliveredTests(), replayTests())
			switch {
			case s.layout.LogOnly():
				all = append(all, recordedTests()...)
			case lacksFailed(&s.layout):
				all = fewTests()
			case !keepsState(&s.layout) && s.layout.DeleteDelivered:
				all = deletedTests()
			}
			s.run(t, all)
		})
	}
}

type test struct {
	name string
	run  func(*suite, *testing.T)
	only selector // applicable layouts; nil for all
}

func tests() []test {
	return []test{
		{"a claim answers for each row by its place", (*suite).testClaimAnswers, nil},
		{"a claim of several outboxes", (*suite).testClaimOutboxes, changesState},
		{"a claim of an open transaction", (*suite).testClaimOpenTxn, plainNames},
		{"which rows are settled", (*suite).testReadSettled, writesClaims},
		{"whether the row of an open transaction is settled", (*suite).testReadSettledOpenTxn, changesState},
		{"which rows are untried", (*suite).testReadUntried, nil},
		{"a claim of a row twice", (*suite).testClaimTwice, plainNames},
		{"a claim of 5000 rows", (*suite).testClaimMany, many},
		{"a claim that writes nothing", (*suite).testClaimUnwritten, skipsClaims},
		{"a claim and somebody else's", (*suite).testClaimHeld, all(timesClaims, plainNames)},
		{"a claim at once of a dead predecessor's row", (*suite).testClaimAtOnce, all(keepsState, plainNames)},
		{"an outcome of each status", (*suite).testSettle, nil},
		{"an outcome of a settled or deleted row", (*suite).testSettleConditional, nil},
		{"several outcomes of one row", (*suite).testSettleTwice, changesState},
		{"an outcome without a claim", (*suite).testSettleUnclaimed, plainNames},
		{"an outcome of an open transaction", (*suite).testSettleOpenTxn, changesState},
		{"an outcome of an open transaction, spilled and blocking", (*suite).testSettleOpenTxnSpilled, all(keepsState, changesState)},
		{"a reason of failure", (*suite).testReasons, keepsCodes},
		{"hostile error texts", (*suite).testErrorTexts, all(keepsErrors, changesState)},
		{"receipts of deliveries", (*suite).testReceipts, keepsDelivered},
		{"hostile receipts", (*suite).testHostileReceipts, isWords},
		{"columns that cannot keep receipts", (*suite).testReceiptColumns, isWords},
		{"a checkpoint", (*suite).testCheckpoint, isWords},
		{"a view in order", (*suite).testViewOrder, writesClaims},
		{"a view of rows that are equal in order-by", (*suite).testTies, all(keepsState, changesState)},
		{"a view of one moment", (*suite).testViewMoment, isWords},
		{"a view of few bytes", (*suite).testViewBytes, all(keepsState, changesState)},
		{"a view without some lanes", (*suite).testViewExcept, all(keepsState, writesClaims)},
		{"a view without a large lane", (*suite).testViewExceptLarge, all(keepsState, writesClaims)},
		{"delivered rows after their retention", (*suite).testPrune, all(prunes, writesClaims)},
		{"the database's time", (*suite).testClock, isWords},
		{"5000 delivered rows", (*suite).testPruneMany, all(many, prunes)},
		{"an archive of delivered rows", (*suite).testArchive, all(prunes, changesState)},
		{"an old epoch deletes nothing", (*suite).testPruneFence, all(prunes, changesState)},
		{"what cannot be deleted", (*suite).testPruneRefused, changesState},
		{"pauses of lanes", (*suite).testPauses, isWords},
		{"a pause after a restart", (*suite).testPauseSurvives, isWords},
		{"blocked lanes", (*suite).testBlock, all(keepsState, writesClaims)},
		{"a lane blocked by a lost answer's repeat", (*suite).testBlockLostAnswer, all(keepsState, changesState)},
		{"several failures of one lane", (*suite).testBlockOneLane, all(keepsState, changesState)},
		{"a block ends with its row's failure", (*suite).testBlockEnds, all(keepsState, changesState)},
		{"what cannot block", (*suite).testBlockRefused, changesState},
		{"an old epoch holds and requeues nothing", (*suite).testHoldFence, changesState},
		{"dead letters by filter", (*suite).testFailed, all(keepsState, writesClaims)},
		{"requeue by filter", (*suite).testRequeue, all(keepsState, writesClaims)},
		{"requeue beside a takeover timeout", (*suite).testRequeueTakeover, all(timesClaims, plainNames)},
		{"discard by filter", (*suite).testDiscard, all(keepsState, writesClaims)},
		{"a table for dead letters", (*suite).testFailedArchive, all(keepsState, changesState)},
		{"5000 dead letters", (*suite).testLettersMany, many},
		{"dead letters that cannot be asked for", (*suite).testLettersRefused, changesState},
		{"holds and dead letters of a closed store", (*suite).testLettersClosed, isWords},
		{"a view by pages", (*suite).testPages, many},
		{"install again and at once", (*suite).testInstall, isWords},
		{"check names what is missing", (*suite).testCheck, nil},
		{"a diagnosis", (*suite).testDiagnose, writesClaims},
		{"cancel and close", (*suite).testCancelAndClose, isWords},
	}
}

func spillTests() []test {
	return []test{
		{"rows spilled and read back", (*suite).testSpill, wordsOrNone},
		{"spilled rows with odd ids", (*suite).testSpillOddIDs, isWords},
		{"rows spilled again", (*suite).testSpillAgain, isWords},
		{"what cannot be spilled", (*suite).testSpillRefused, wordsOrNone},
		{"an old epoch spills nothing", (*suite).testSpillFence, isWords},
		{"spilled rows found settled or gone", (*suite).testDeleteSpilled, wordsOrNone},
		{"spilled rows that the log brings again", (*suite).testDeleteSpilledAfter, isWords},
		{"lanes with spilled rows", (*suite).testSpilledLanes, isWords},
		{"an outcome of a spilled row", (*suite).testSettleSpilled, changesState},
		{"a spilled row of an open transaction", (*suite).testSpillOpenTxn, changesState},
		{"3000 spilled rows", (*suite).testSpillMany, many},
		{"a view without spilled rows", (*suite).testViewWithoutSpilled, all(keepsState, writesClaims)},
		{"a view without rows that legs spilled", (*suite).testViewWithoutLegs, many},
		{"an outcome that a leg brings", (*suite).testSettleLeg, all(keepsState, changesState)},
	}
}

// many selects the layouts for tests with thousands of rows, because splitting statements
// and reading pages is the same for every layout. One of the two keeps delivered rows, the
// other deletes them.
func many(l *store.Layout) bool {
	return l.Name == store.FlowCatalyst().Name || l.Name == store.OutboxMessages().Name
}

// isWords selects one layout for tests that do not depend on it.
func isWords(l *store.Layout) bool { return l.Name == store.FlowCatalyst().Name }

// wordsOrNone selects two layouts for tests of the relay's tables: payloads are stored
// there only if the outbox keeps no state.
func wordsOrNone(l *store.Layout) bool { return isWords(l) || !keepsState(l) }

// changesState selects one layout for each way to store a state. The two others store it as
// isWords does: one has odd names, for tests that run each statement once, and one writes no
// claims, for tests of claims and of outcomes.
func changesState(l *store.Layout) bool { return plainNames(l) && writesClaims(l) }

func plainNames(l *store.Layout) bool   { return l.Name != oddNames().Name }
func keepsState(l *store.Layout) bool   { return l.State != store.StateNone }
func keepsCodes(l *store.Layout) bool   { return l.State == store.StateNumbers }
func keepsErrors(l *store.Layout) bool  { return l.Columns.Error != "" }
func timesClaims(l *store.Layout) bool  { return l.Columns.Claimed != "" && !l.Unclaimed }
func skipsClaims(l *store.Layout) bool  { return l.Unclaimed }
func writesClaims(l *store.Layout) bool { return !l.Unclaimed }

type selector func(*store.Layout) bool

// all selects the layouts that each of the selectors selects.
func all(selectors ...selector) selector {
	return func(l *store.Layout) bool {
		return !slices.ContainsFunc(selectors, func(of selector) bool { return !of(l) })
	}
}

// timestamps returns a layout whose state is in nullable times.
func timestamps() store.Layout {
	return store.Layout{
		Name: "timestamps",
		Columns: store.Columns{
			ID: "id", Kind: "type", Group: "message_group", Payload: "payload",
			Delivered: "sent_at", Failed: "failed_at", Claimed: "taken_at", Settled: "ended_at",
			RetryCount: "attempts", Error: "last_error",
		},
		State:   store.StateTimestamps,
		OrderBy: []string{"created_at"},
	}
}

func withoutClaim(l store.Layout) store.Layout {
	l.Name += "-without-claim"
	l.Columns.Claimed, l.Columns.Settled = "", ""
	l.Columns.RetryCount, l.Columns.Error = "", ""
	return l
}

// unclaimed returns a layout whose claims write nothing.
func unclaimed(l store.Layout) store.Layout {
	l.Name += "-unclaimed"
	l.Unclaimed = true
	return l
}

// oddNames returns a layout with names that must be quoted and with the group inside JSON.
func oddNames() store.Layout {
	return store.Layout{
		Name: "odd-names",
		Columns: store.Columns{
			ID: "Order", Kind: "select", Group: "Meta \"data\"", Payload: "from",
			Status: "CamelState", Claimed: "größe'", Settled: "table", RetryCount: "a.b", Error: "$1",
		},
		State: store.StateWords,
		Words: map[store.Status]string{
			store.Pending: "NEW", store.Processing: "it's \"sending\"", store.Completed: "SENT", store.Failed: "dead",
		},
		OrderBy:   []string{"Created At"},
		GroupPath: []string{"customer", "the id"},
	}
}

// stateless returns a layout without state.
func stateless() store.Layout {
	return store.Layout{
		Name:    "none",
		Columns: store.Columns{ID: "id", Kind: "type", Group: "message_group", Payload: "payload"},
		State:   store.StateNone,
	}
}

type suite struct {
	harness   Harness
	layout    store.Layout
	hasTables bool // the tables of start and the relay's tables exist
}

func (s *suite) outbox(name string) store.Outbox {
	table := "outbox_" + name
	if s.layout.Name == oddNames().Name {
		table = "Outbox of " + name
	}
	return store.Outbox{Name: name, Table: table, Layout: s.layout, Kind: "EVENT"}
}

// stateful reports whether the table keeps state.
func (s *suite) stateful() bool { return keepsState(&s.layout) }

// claimWrites reports whether a claim writes to the row.
func (s *suite) claimWrites() bool {
	return s.stateful() && !s.layout.Unclaimed && (s.layout.State != store.StateTimestamps || s.layout.Columns.Claimed != "")
}

// claimReadsRows reports whether a claim reads every row.
func (s *suite) claimReadsRows() bool { return s.stateful() && !s.layout.Unclaimed }

// bench is a database with a leading store.
type bench struct {
	*suite
	db    Database
	boxes []store.Outbox
	store Store
	epoch store.Epoch
}

// start creates tables for the outboxes a and b, and acquires leadership.
func (s *suite) start(t *testing.T, takeover time.Duration) *bench {
	t.Helper()
	b := &bench{suite: s, boxes: []store.Outbox{s.outbox("a"), s.outbox("b")}}
	if e, fast := s.harness.(Resetter); fast && s.hasTables {
		b.db = e.Empty(t, b.boxes...)
	} else {
		b.db = s.setup(t, b.boxes...)
	}

	b.store = b.open(t, takeover)
	if err := b.store.Install(b.ctx(t)); err != nil {
		t.Fatal(err)
	}

	s.hasTables = true
	b.epoch = b.lead(t, b.store)
	return b
}

// setup creates tables without the relay's tables.
func (s *suite) setup(t *testing.T, boxes ...store.Outbox) Database {
	s.hasTables = false
	return s.harness.Setup(t, boxes...)
}

// open opens another store on the same tables.
func (b *bench) open(t *testing.T, takeover time.Duration) Store {
	t.Helper()
	st := b.db.Store(t, Config{Outboxes: b.boxes, TakeoverTimeout: takeover})
	t.Cleanup(st.Close)
	return st
}

func (s *suite) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	t.Cleanup(cancel)
	return ctx
}

func (b *bench) lead(t *testing.T, st Store) store.Epoch {
	t.Helper()
	e, err := st.AcquireLeadership(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// insert inserts rows in one transaction.
func (b *bench) insert(t *testing.T, outbox string, rows ...Row) store.Txn {
	t.Helper()
	txn, commit := b.db.Begin(t, outbox, rows...)
	commit()
	return txn
}

// row returns a plain row.
func row(id string) Row {
	return Row{ID: id, Kind: "EVENT", Group: store.GroupOf("g"), Payload: `{"id":"` + id + `"}`, Created: origin()}
}

// rows returns n rows whose ids are not in their order.
func rows(n int) []Row {
	list := make([]Row, n)
	for i := range list {
		list[i] = row(fmt.Sprintf("%05d", (i*7919)%99991))
		list[i].Created = origin().Add(time.Duration(i) * time.Millisecond)
	}
	return list
}

// origin returns a time that any kind of column holds.
func origin() time.Time { return time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC) }

// now returns the time in a resolution that every database stores.
func now() time.Time { return time.Now().Truncate(time.Millisecond).UTC() }

func ref(outbox, id string) store.Ref { return store.Ref{Outbox: outbox, ID: id} }

// claim claims rows and requires an answer for each.
func (b *bench) claim(t *testing.T, rows ...store.ClaimRow) []store.ClaimAnswer {
	t.Helper()
	answers, err := b.store.Claim(b.ctx(t), b.epoch, now(), rows)
	if err != nil {
		t.Fatal(err)
	}
	if len(answers) != len(rows) {
		t.Fatalf("%d answers for %d rows", len(answers), len(rows))
	}
	return answers
}

// take claims rows that must be free.
func (b *bench) take(t *testing.T, outbox string, ids ...string) {
	t.Helper()
	list := make([]store.ClaimRow, len(ids))
	for i, id := range ids {
		list[i].Ref = ref(outbox, id)
	}
	for i, a := range b.claim(t, list...) {
		if a.Result != store.Claimed {
			t.Fatalf("row %s is %s", ids[i], a.Result)
		}
	}
}

func (b *bench) settle(t *testing.T, outcomes ...store.Outcome) []store.SettleResult {
	t.Helper()
	results, err := b.store.Settle(b.ctx(t), b.epoch, outcomes)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(outcomes) {
		t.Fatalf("%d answers for %d outcomes", len(results), len(outcomes))
	}
	return results
}

func (b *bench) read(t *testing.T, outbox, id string) RowContent {
	t.Helper()
	return b.db.Read(t, outbox, id)
}
