package mongo_test

import (
	"cmp"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/documents"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) {
	if err := servers.Crowd(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, &harness{url: servers.Mongo(t)})
}

// Documents whose times are texts.
func TestStoreTextTimes(t *testing.T) {
	t.Parallel()
	storetest.Run(t, &harness{url: servers.Mongo(t), text: true}, "words", "timestamps")
}

// harness lets the suite work on one database, cleared by each Setup.
type harness struct {
	url  string
	text bool // times are texts
}

// Rename implements storetest.Namer: the name of no field begins with $.
func (h *harness) Rename(l store.Layout) store.Layout {
	l.TextTimes = h.text
	if l.Columns.Error == "$1" {
		l.Columns.Error = "err $1"
	}
	return l
}

func (h *harness) Setup(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	return &database{documents.New(t, servers.OpenMongo(t, h.url), outboxes...), h.url}
}

// Empty implements storetest.Emptier.
func (h *harness) Empty(t *testing.T, outboxes ...store.Outbox) storetest.Database {
	return &database{documents.Emptied(t, servers.OpenMongo(t, h.url), outboxes...), h.url}
}

type database struct {
	*documents.Database
	url string
}

func (d *database) Store(t *testing.T, cfg storetest.Config) store.Store {
	st, err := mongo.New(mongo.Config{
		URL: d.url, Name: cmp.Or(cfg.Name, "suite"), Holder: cfg.Holder, Outboxes: cfg.Outboxes, TakeoverTimeout: cfg.TakeoverTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}
