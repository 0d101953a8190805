package sqlite_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

// TestRetained: the estimate agrees with the pages of the log in the file, for ids of any
// type.
func TestRetained(t *testing.T) {
	for name, id := range map[string]string{
		"short texts": "'e' || i", "long texts": "printf('%0200d', i)", "numbers": "i",
		"blobs": "randomblob(16)",
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabaseOf(t, `CREATE TABLE outbox_events (
	id PRIMARY KEY, message_group TEXT, payload TEXT, status TEXT NOT NULL DEFAULT 'PENDING',
	retry_count INT NOT NULL DEFAULT 0, created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
	processed_at DATETIME, error_message TEXT)`, outboxes("shop")...)
			src := newSource(t, d.config())
			defer src.Close()
			open(t, d, src, store.Checkpoint{}).View.Close()
			d.exec(t, fmt.Sprintf(`WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 5000)
				INSERT INTO outbox_events (id, payload) SELECT %s, 'p' FROM c`, id))
			pages := ask[int64](t, d, "SELECT sum(pgsize) FROM dbstat WHERE name = 'sluicebox_log_relay'")
			kept, err := src.Retained(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the log has %d bytes of pages, the estimate is %d", pages, kept.Bytes)
			if kept.Bytes < pages*3/4 || kept.Bytes > pages*5/4 || kept.Limit != 0 {
				t.Errorf("the log has %d bytes of pages, the source says %+v", pages, kept)
			}
		})
	}
}

// TestRetainedBesideAWriter: Retained waits neither for a service that holds the write lock
// nor for a marker that waits for it.
func TestRetainedBesideAWriter(t *testing.T) {
	d := newDatabase(t)
	src := newSource(t, d.config())
	defer src.Close()
	open(t, d, src, store.Checkpoint{}).View.Close()
	list, _ := rows("row", 10)
	d.commit(t, list...)
	service, err := sqlitestore.Dial(t.Context(), d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	looks := 0
	err = service.Write(t.Context(), sqlitestore.Normal, func(context.Context) error {
		marked := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			marked <- src.Mark(ctx, "mark")
		}()
		for ; ; looks++ {
			select {
			case err := <-marked:
				if err == nil {
					t.Error("a marker was written past the lock")
				}
				return nil
			default:
			}
			if kept, err := src.Retained(t.Context()); err != nil || kept.Bytes == 0 {
				t.Errorf("%+v, %v", kept, err)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	if looks < 10 {
		t.Errorf("%d looks while a marker waited", looks)
	}
}
