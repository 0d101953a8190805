package capture_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// tables gives a source access to the tables. A relay also clears its saved checkpoint
// in ClearCheckpoint; this example saves none.
type tables struct{ *sqlitestore.Store }

func (tables) ClearCheckpoint(context.Context) error { return nil }

func (tables) Keep(context.Context, store.Checkpoint, []store.Item) error { return nil }

// connection logs the connection events of a source.
type connection struct{}

func (connection) Connected() {}

func (connection) Disconnected(err error, wait time.Duration) {
	log.Printf("source connection lost, reconnecting in %s: %v", wait, err)
}

// Open a source without a checkpoint, read the rows of its snapshot, and follow the log
// from there.
func ExampleFollow() {
	ctx, cancel := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "shop.db")
	insert(path, `CREATE TABLE outbox_events (
		id TEXT PRIMARY KEY, message_group TEXT, payload TEXT, status TEXT NOT NULL DEFAULT 'PENDING',
		retry_count INT NOT NULL DEFAULT 0, created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
		processed_at DATETIME, error_message TEXT)`,
		`INSERT INTO outbox_events (id, payload) VALUES ('before', '{}')`)

	outboxes := []store.Outbox{{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()}}
	views, err := sqlitestore.New(sqlitestore.Config{URL: "sqlite:" + path, Name: "shop", Outboxes: outboxes})
	if err != nil {
		log.Fatal(err)
	}
	defer views.Close()
	src, err := sqlite.New(sqlite.Config{URL: "sqlite:" + path, Name: "shop", Outboxes: outboxes})
	if err != nil {
		log.Fatal(err)
	}
	defer src.Close()

	opened, err := src.Open(ctx, store.Checkpoint{}, tables{views})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("snapshot:", opened.SnapshotReason)
	items, err := opened.View.Unsettled(ctx, store.UnsettledQuery{Outbox: "events", Limit: 100})
	if err != nil {
		log.Fatal(err)
	}
	for _, it := range items {
		fmt.Println("from the snapshot:", it.ID)
	}
	opened.View.Close()

	insert(path, `INSERT INTO outbox_events (id, payload) VALUES ('after', '{}')`)
	batches, ended := make(chan capture.Batch), make(chan error, 1)
	go func() { ended <- capture.Follow(ctx, src, opened.From, batches, connection{}) }()

	for read := 0; read == 0; {
		b := <-batches
		for _, it := range b.Items {
			fmt.Println("from the log:", it.ID)
			read++
		}
		// A relay acknowledges a position only when the rows up to it are settled.
		if b.Position != "" {
			src.Acknowledge(b.Position)
		}
	}
	cancel()
	fmt.Println(<-ended)
	// Output:
	// snapshot: there is no checkpoint yet
	// from the snapshot: before
	// from the log: after
	// context canceled
}

// insert runs statements as a service would.
func insert(path string, statements ...string) {
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			log.Fatal(err)
		}
	}
}
