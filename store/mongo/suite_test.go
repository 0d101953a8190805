package mongo_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/documents"
	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) {
	// With the race detector only the tests with the most going on at once run.
	err := errors.Join(servers.Crowd(), raced.Only(TestWritesTakeTurns, TestOutcomesJoinNextClaim,
		TestContendedDocumentDelaysNothing, TestCanceledCalls,
		TestSingleUpdatesMatchTransactions, TestStepDown, TestRequestsCounted))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return &harness{url: servers.Mongo(t)} })
}

// Documents whose times are text.
func TestStoreTextTimes(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return &harness{url: servers.Mongo(t), text: true} }, "timestamps")
}

// Stores that hold the lock, and so a grant to write without transactions.
func TestStoreWithGrants(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Harness { return &harness{url: servers.Mongo(t), locks: true} }, "words")
}

// Stores that share connections behave as others do.
func TestStoreBeside(t *testing.T) {
	t.Parallel()
	storetest.RunSessions(t, func(t *testing.T) storetest.Harness { return &harness{url: servers.Mongo(t), beside: true} })
}

// harness runs the suite on one database, cleared by each Setup.
type harness struct {
	beside bool // each store is beside another one
	url    string
	text   bool // times are text
	locks  bool // a leader acquires the lock first
}

// Rename implements storetest.Namer: no field name begins with $.
func (h *harness) Rename(l store.Layout) store.Layout {
	if l.TextTimes = h.text; h.text || h.locks {
		l.Name += "-again" // so that tests of one layout run in TestStore only
	}
	if l.Columns.Error == "$1" {
		l.Columns.Error = "err $1"
	}
	return l
}

func (h *harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	return &database{documents.New(t, servers.OpenMongo(t, h.url), outboxes...), h, nil}
}

// Empty implements storetest.Emptier.
func (h *harness) Empty(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	return &database{documents.Reset(t, servers.OpenMongo(t, h.url), outboxes...), h, nil}
}

type database struct {
	*documents.Database
	*harness
	held store.Lock
}

// locking is a store that acquires the lock when it becomes leader. The previous holder
// releases it.
type locking struct {
	storetest.Store
	in *database
}

func (l *locking) AcquireLeadership(ctx context.Context) (store.Epoch, error) {
	lock, err := l.Lock(ctx)
	if err == nil {
		l.in.held = lock
	} else if !errors.As(err, new(*store.LockedError)) { // held by the test
		return 0, err
	}
	return l.Store.AcquireLeadership(ctx)
}

func (l *locking) Lock(ctx context.Context) (store.Lock, error) {
	if l.in.held != nil {
		l.in.held.Release()
		l.in.held = nil
	}
	return l.Store.Lock(ctx)
}

func (d *database) Store(t *testing.T, cfg storetest.Config) storetest.Store {
	of := mongo.Config{
		URL: d.url, Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	}
	st, err := mongo.New(of)
	if err != nil {
		t.Fatal(err)
	}
	whole := ledger.Store{Tables: st, Ledger: st.Ledger}
	if d.beside {
		t.Cleanup(st.Close)
		if whole, err = st.Beside(store.Settings{Name: of.Name, Holder: of.Holder, TakeoverTimeout: of.TakeoverTimeout}); err != nil {
			t.Fatal(err)
		}
	}
	// With updates in flight the lock is free only after 5 s: too long for 40 times.
	if d.locks && !strings.HasSuffix(t.Name(), "lands_behind_a_new_one") {
		return &locking{whole, d}
	}
	return whole
}

// LockRows implements storetest.Locking by an uncommitted change.
func (d *database) LockRows(t *testing.T, outbox string, ids ...string) func() {
	t.Helper()
	o := d.Outbox(outbox)
	db := servers.OpenMongo(t, d.url)
	session, err := db.Client().StartSession()
	if err == nil {
		err = session.StartTransaction()
	}
	if err != nil {
		t.Fatal(err)
	}
	in := driver.NewSessionContext(t.Context(), session)
	change := bson.D{{Key: "$set", Value: bson.D{{Key: "changed", Value: true}}}}
	if _, err := db.Collection(o.Table).UpdateMany(in, bson.D{{Key: o.Layout.Columns.ID, Value: bson.D{{Key: "$in", Value: ids}}}}, change); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if err := session.AbortTransaction(context.Background()); err != nil {
			t.Error(err)
		}
		session.EndSession(context.Background())
	})
}

// LockTable implements storetest.Locking: no session locks a collection for long.
func (d *database) LockTable(*testing.T, string) func() { return nil }
