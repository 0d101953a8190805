package app

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// messageRelay runs a relay of one SQLite table until the test ends.
func messageRelay(t *testing.T) (db *sql.DB, to *sinktest.Receiver, client *admin.Client, letters store.DeadLetters) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	execute(t, db, ddl.SQLite().Messages())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	to = sinktest.NewReceiver(t)
	cfg := loadConfig(t, fmt.Sprintf(`
source: {url: "sqlite://%s"}
admin: {listen: %q}
dispatch: {max-retries: 0}
outboxes: [{table: outbox_messages, layout: outbox-messages, sink: platform}]
sinks: {platform: {type: flowcatalyst, wire: items, api-base-url: %q}}
`, path, address, to.URL()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, Options{Config: cfg, Log: slog.New(slog.DiscardHandler)}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	if client, err = admin.NewClient(address, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	letters, closed, err := OpenDeadLetters(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed)
	return db, to, client, letters
}

func execute(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// within calls check until it returns "".
func within(t *testing.T, check func() string) {
	t.Helper()
	end, tick := time.After(20*time.Second), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		wrong := check()
		if wrong == "" {
			return
		}
		select {
		case <-end:
			t.Fatalf("after 20 s: %s", wrong)
		case <-tick.C:
		}
	}
}

// TestOperate drives a running relay through its API.
func TestOperate(t *testing.T) {
	db, to, client, letters := messageRelay(t)
	insert := func(id, group string) string {
		return fmt.Sprintf("INSERT INTO outbox_messages (id, type, message_group, payload) VALUES ('%s', 'EVENT', '%s', '{\"id\": \"%s\"}');", id, group, id)
	}
	taken := func(want ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := to.Wait(ctx, len(want)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range to.Accepted() {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("taken: %q, want %q", got, want)
		}
	}
	failed := func(n int) {
		t.Helper()
		within(t, func() string {
			if got, err := letters.CountFailed(t.Context(), store.DeadLetterFilter{Outbox: "outbox_messages"}); err != nil || got != n {
				return fmt.Sprintf("%d rows are FAILED, %v; want %d", got, err, n)
			}
			return ""
		})
	}
	to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Status: 422} })
	execute(t, db, insert("bad", "g")+insert("worse", "g"))
	failed(2)
	req := admin.DeadLetterRequest{Outbox: "outbox_messages", IDs: []string{"bad"}, DryRun: true}
	n, err := client.ActOnDeadLetters(t.Context(), "requeue", req)
	if err != nil || n.Count != 1 || n.Until.IsZero() {
		t.Fatalf("counted %+v, %v", n, err)
	}
	to.Script(nil)
	req.DryRun, req.Until = false, n.Until
	if n, err = client.ActOnDeadLetters(t.Context(), "requeue", req); err != nil || n.Count != 1 {
		t.Fatalf("requeued %+v, %v", n, err)
	}
	taken("bad")
	if n, err = client.ActOnDeadLetters(t.Context(), "discard", admin.DeadLetterRequest{Outbox: "outbox_messages"}); err != nil || n.Count != 1 {
		t.Fatalf("discarded %+v, %v", n, err)
	}
	failed(0)

	h := "h"
	lane := admin.LaneRequest{LaneName: dispatch.LaneName{LaneKey: store.LaneKey{Outbox: "outbox_messages", Kind: "EVENT", Group: store.GroupOf(h)}}, Reason: "stock-taking"}
	if shown, err := client.ActOnLane(t.Context(), "pause", lane); err != nil || shown.State != "paused" || shown.Reason != "stock-taking" {
		t.Fatalf("paused: %+v, %v", shown, err)
	}
	execute(t, db, "BEGIN;"+insert("held", "h")+insert("free", "g")+"COMMIT")
	taken("bad", "free")
	list, err := client.Lanes(t.Context(), dispatch.LaneFilter{State: "paused"}, 0)
	if err != nil || list.Total != 1 || list.Lanes[0].Head != "held" || list.Lanes[0].Rows != 1 {
		t.Fatalf("the lanes are %+v, %v", list, err)
	}
	if _, err := client.ActOnLane(t.Context(), "resume", lane); err != nil {
		t.Fatal(err)
	}
	taken("bad", "free", "held")
}
