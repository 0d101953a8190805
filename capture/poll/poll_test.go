package poll_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func outboxes(name string) []store.Outbox {
	return []store.Outbox{{Name: name, Table: "outbox_events", Layout: store.FlowCatalyst(), Kind: "EVENT"}}
}

func oddNames(name string) []store.Outbox { return []store.Outbox{capturetest.QuotedNames(name)} }

type database struct {
	url      string
	views    *pgstore.Store
	outboxes func(name string) []store.Outbox
}

func (d *database) Source(_ *testing.T, o capturetest.Options) capturetest.Source {
	cfg := poll.Config{Interval: 20 * time.Millisecond, BatchSize: o.BatchRows, Backoff: poll.DefaultBackoff(), Outboxes: d.outboxes(o.Outbox)}
	return source{poll.New(cfg, d.views, capturetest.HeldFunc(o.Held))}
}

type source struct{ *poll.Source }

func (source) Close() {}

func (d *database) Viewer(*testing.T) store.Viewer { return d.views }
func (d *database) Unrelated(*testing.T)           {}
func (d *database) Disconnect(*testing.T)          {}

func (d *database) Begin(t *testing.T, rows ...capturetest.Row) func(commit bool) {
	t.Helper()
	tx, end := servers.Begin(t, d.url)
	if tx == nil {
		return end
	}
	box := &d.outboxes("shop")[0]
	c := box.Layout.Columns
	insert := fmt.Sprintf("INSERT INTO %s (%s, %s, %s) VALUES ($1, $2, $3)",
		pgstore.TableName(box), pgstore.Ident(c.ID), pgstore.Ident(c.Group), pgstore.Ident(c.Payload))
	for _, r := range rows {
		if _, err := tx.Exec(context.Background(), insert, r.ID, storetest.GroupText(&box.Layout, r.Group), r.Payload); err != nil {
			t.Error(err)
		}
	}
	return end
}

func TestSuite(t *testing.T) {
	t.Parallel()
	for _, version := range servers.Versions() {
		t.Run("PostgreSQL "+strconv.Itoa(version), func(t *testing.T) {
			t.Parallel() // a test mostly waits
			capturetest.Run(t, harness(version, ddl.Postgres().FlowCatalyst("outbox_events"), outboxes))
			t.Run("odd names", func(t *testing.T) { capturetest.RunLayout(t, harness(version, ddl.Postgres().Quoted(), oddNames)) })
		})
	}
}

// TestSuiteAlone runs the part of the suite that checks for leaked goroutines.
func TestSuiteAlone(t *testing.T) {
	for _, version := range servers.Versions() {
		t.Run("PostgreSQL "+strconv.Itoa(version), func(t *testing.T) {
			capturetest.RunIsolated(t, harness(version, ddl.Postgres().FlowCatalyst("outbox_events"), outboxes))
		})
	}
}

func harness(version int, create string, outboxes func(name string) []store.Outbox) capturetest.Harness {
	return capturetest.Harness{Setup: func(t *testing.T) capturetest.Database {
		d := &database{url: servers.Database(t, version), outboxes: outboxes}
		servers.Exec(t, d.url, create)
		var err error
		d.views, err = pgstore.New(pgstore.Config{URL: d.url, Name: "poll", Outboxes: outboxes("shop")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.views.Close)
		return d
	}}
}
