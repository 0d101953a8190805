package app

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
)

// A running relay finds requests written to its database and carries them out. This one
// replays from the table, because SQLite's log does not hold the rows.
func TestRequestsAreCarriedOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	execute(t, db, ddl.SQLite().FlowCatalyst("outbox_events"))
	to := sinktest.NewReceiver(t)
	cfg := loadConfig(t, fmt.Sprintf(`
source: {url: "sqlite://%s"}
admin: {listen: ""}
outboxes: [{table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: platform}]
sinks: {platform: {type: flowcatalyst, wire: items, api-base-url: %q}}
`, path, to.URL()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, Options{Config: cfg, Log: slog.New(slog.DiscardHandler)}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	execute(t, db, `INSERT INTO outbox_events (id, message_group, payload) VALUES ('1', 'g', '{"id": 1}'), ('2', 'g', '{"id": 2}')`)
	within(t, func() string {
		var open int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'").Scan(&open); err != nil || open > 0 {
			return fmt.Sprintf("%d rows are open, %v", open, err)
		}
		return ""
	})
	replays, closed, err := OpenRequests(cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	id, err := replays.StartReplay(t.Context(), &replay.Spec{Since: time.Now().Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	within(t, func() string {
		list, err := replays.Replays(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != id || list[0].State != "done" || list[0].Sent != 2 {
			return fmt.Sprintf("%+v, %v", list, err)
		}
		return ""
	})
	if taken := to.Accepted(); len(taken) != 4 {
		t.Errorf("%d rows arrived", len(taken))
	}
}
