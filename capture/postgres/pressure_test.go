package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/postgres"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mib is a unit for amounts of memory.
const mib = 1 << 20

// TestBackPressure: a consumer that accepts nothing for a long time makes the source wait
// inside one large transaction. That costs neither the connection nor memory, and then
// every row arrives in order.
func TestBackPressure(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	for _, c := range []struct {
		name   string
		insert string
		rows   int
		size   int // bytes of the transaction's payloads
		pause  time.Duration
		most   int // bytes that the heap may grow by; both versions run at once
	}{
		{
			"many rows",
			"INSERT INTO outbox_events (id, message_group, payload) SELECT 'row-' || i, i % 100, repeat(md5(i::text), 10) FROM generate_series(0, 99999) i",
			100_000, 320 * 100_000, 5 * time.Second, 2 * 4 * mib,
		}, {
			// A batch is also bounded by 4 MiB, so it has far fewer than 500 of these
			// rows.
			"large rows",
			"INSERT INTO outbox_events (id, message_group, payload) SELECT 'row-' || i, 'g', repeat(md5(i::text), 32768) FROM generate_series(0, 99) i",
			100, 100 * mib, 4 * time.Second, 2 * 16 * mib,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTurn(t, servers.Spread(t, servers.Versions()), func(t *testing.T, version int) {
				srv := servers.Start(t, version, map[string]string{"wal_sender_timeout": "2s"})
				d := privateDatabase(t, srv)
				p := startPaused(t, d, d.config())
				before := heap()
				servers.Exec(t, d.url, c.insert)
				p.waitForStatuses(t, d, 1)
				for range 5 {
					<-time.After(c.pause / 5) // the pause itself
					grown := heap() - before
					t.Logf("the heap has grown by %.1f MiB", float64(grown)/mib)
					if grown > c.most {
						t.Errorf("the heap has grown by %d bytes for %d bytes of payload, must be at most %d", grown, c.size, c.most)
					}
				}
				p.waitForStatuses(t, d, 3) // it is alive, and still waits
				p.receiveAll(c.rows, c.size/c.rows)
			})
		})
	}
}

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	runtime.GC() // the content of a sync.Pool survives one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// pausedReceiver is a source whose receiver accepts nothing until receiveAll.
type pausedReceiver struct {
	t    *testing.T
	src  *postgres.Source
	out  chan capture.Batch
	done chan error
	seen *counter
	pid  int // of the walsender
}

func startPaused(t *testing.T, d *database, cfg postgres.Config) *pausedReceiver {
	t.Helper()
	p := &pausedReceiver{t: t, src: newSource(t, cfg), out: make(chan capture.Batch), done: make(chan error, 1), seen: &counter{}}
	o, err := p.src.Open(t.Context(), store.Checkpoint{}, d.tables())
	if err != nil {
		p.src.Close()
		t.Fatal(err)
	}
	o.View.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { p.done <- capture.Follow(ctx, p.src, o.From, p.out, p.seen) }()
	t.Cleanup(func() {
		cancel()
		if err := <-p.done; !errors.Is(err, context.Canceled) {
			t.Errorf("the source ended with %v", err)
		}
		p.src.Close()
	})
	servers.Exec(t, d.url, insert("first"))
	select {
	case b := <-p.out:
		if len(b.Items) != 1 || b.Items[0].ID != "first" {
			t.Fatalf("batch %+v", b)
		}
	case <-time.After(testTimeout):
		t.Fatal("no row arrived")
	}
	return p
}

// waitForStatuses waits until the walsender has received n more statuses, and checks that
// it is still the same walsender.
func (p *pausedReceiver) waitForStatuses(t *testing.T, d *database, n int) {
	t.Helper()
	conn := servers.Connect(t, d.url)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(testTimeout)
	var last time.Time
	for heard := -1; heard < n; {
		select {
		case <-timeout:
			t.Fatalf("the server received %d statuses", heard)
		case <-tick.C:
		}
		var at *time.Time
		var pid int
		err := conn.QueryRow(t.Context(), "SELECT pid, reply_time FROM pg_stat_replication").Scan(&pid, &at)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && p.pid != 0 && pid != p.pid {
			t.Fatalf("the walsender ended or changed; the source reported %d lost connections", p.seen.lost.Load())
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.pid = pid; at != nil && at.After(last) {
			last = *at
			heard++
		}
	}
}

// receiveAll receives the rows of the transaction and checks them on arrival. It keeps no
// row.
func (p *pausedReceiver) receiveAll(rows, size int) {
	p.t.Helper()
	timeout := time.After(3 * time.Minute)
	largest := 0
	var end store.Position
	for next := 0; next < rows || end == ""; {
		var b capture.Batch
		select {
		case b = <-p.out:
		case <-timeout:
			p.t.Fatalf("%d of %d rows arrived", next, rows)
		}
		sum := 0
		for i := range b.Items {
			it := &b.Items[i]
			if want := fmt.Sprint("row-", next); it.ID != want {
				p.t.Fatalf("row %s, want %s", it.ID, want)
			}
			if text := string(it.Payload); len(text) != size || !strings.HasPrefix(text[32:], text[:32]) {
				p.t.Errorf("row %s has a payload of %d bytes, want %d: %.70q", it.ID, len(text), size, text)
			}
			sum += len(it.Payload)
			next++
		}
		largest, end = max(largest, sum), b.Position
		if end != "" && next != rows {
			p.t.Errorf("a position arrived after %d of %d rows", next, rows)
		}
	}
	p.t.Logf("the largest batch had %d bytes of payload", largest)
	if largest > 4*mib {
		p.t.Errorf("a batch had %d bytes of payload", largest)
	}
	if lost, connected := p.seen.lost.Load(), p.seen.connected.Load(); lost != 0 || connected != 1 {
		p.t.Errorf("the connection was lost %d times and made %d times", lost, connected)
	}
}
