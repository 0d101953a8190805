package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
)

// Claim rows of an outbox, deliver them, and write their outcomes.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "shop.db")
	fillOutbox(path)

	st, err := sqlite.New(sqlite.Config{
		URL:  "sqlite:" + path,
		Name: "shop",
		Outboxes: []store.Outbox{
			{Name: "events", Table: "outbox_events", Kind: "EVENT", Layout: store.FlowCatalyst()},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer st.Close()
	if err := st.Install(ctx); err != nil { // the relay's tables
		log.Fatal(err)
	}

	// The epoch fences all writes: once another store leads, they fail with ErrNotLeader.
	epoch, err := st.AcquireLeadership(ctx)
	if err != nil {
		log.Fatal(err)
	}

	rows := []store.ClaimRow{
		{Ref: store.Ref{Outbox: "events", ID: "1"}, WantPayload: true},
		{Ref: store.Ref{Outbox: "events", ID: "deleted"}, WantPayload: true},
	}
	answers, err := st.Claim(ctx, epoch, time.Now(), rows)
	if err != nil {
		log.Fatal(err)
	}

	var outcomes []store.Outcome
	for i, a := range answers {
		if a.Result != store.Claimed {
			fmt.Printf("row %s: %s\n", rows[i].ID, a.Result)
			continue
		}
		fmt.Printf("row %s: deliver %s\n", rows[i].ID, a.Payload)
		outcomes = append(outcomes, store.Outcome{Ref: rows[i].Ref, Status: store.Completed, At: time.Now()})
	}

	if _, err := st.Settle(ctx, epoch, outcomes); err != nil {
		log.Fatal(err)
	}

	again, err := st.Claim(ctx, epoch, time.Now(), rows[:1])
	if err != nil {
		log.Fatal(err)
	}

	fmt.Printf("row %s: %s\n", rows[0].ID, again[0].Result)
	// Output:
	// row 1: deliver {"total":12}
	// row deleted: gone
	// row 1: already_settled
}

// fillOutbox creates an outbox with one row, as a service would.
func fillOutbox(path string) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	_, err = db.Exec(`
		CREATE TABLE outbox_events (
			id TEXT PRIMARY KEY, message_group TEXT, payload TEXT NOT NULL,
			status TEXT NOT NULL DEFAULT 'PENDING', retry_count INT NOT NULL DEFAULT 0,
			created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, processed_at TIMESTAMP, error_message TEXT
		);
		INSERT INTO outbox_events (id, message_group, payload) VALUES ('1', 'order-7', '{"total":12}');`)
	if err != nil {
		log.Fatal(err)
	}
}

// Map a table with nullable timestamps instead of a status column.
func ExampleLayout() {
	layout := store.Layout{
		Name:  "orders",
		State: store.StateTimestamps,
		Columns: store.Columns{
			ID: "id", Payload: "body", Group: "order_no",
			Delivered: "sent_at", Failed: "failed_at", Error: "last_error",
		},
		OrderBy: []string{"created_at"},
	}

	fmt.Println(layout.Validate())
	fmt.Println(layout.WritesClaims(), layout.WrittenColumns())

	layout.Columns.Delivered = ""
	fmt.Println(layout.Validate())
	// Output:
	// <nil>
	// false [sent_at failed_at last_error]
	// layout orders: columns.delivered is not set; name the column
}

// Read the message group from inside the payload.
func ExampleLayout_Group() {
	path, err := store.ParseGroupPath("customer.id")
	if err != nil {
		log.Fatal(err)
	}
	layout := store.Layout{GroupPath: path}
	fmt.Println(layout.Group([]byte(`{"customer": {"id": "c-1"}, "total": 12}`)))
	fmt.Println(layout.Group([]byte(`{"total": 12}`)))
	// Output:
	// c-1
	// (none)
}
