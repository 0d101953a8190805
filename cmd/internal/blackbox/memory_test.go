package blackbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/storetest/raced"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// hugeVariable sets number and size in MiB of the rows of TestMemoryOfHugeRows, such as
// 30x100.
const hugeVariable = "SLUICEBOX_TEST_HUGE"

// discard is a receiver that discards all rows, and may hang.
type discard struct {
	*httptest.Server
	taken   atomic.Int64
	mu      sync.Mutex
	release chan struct{} // closed unless it hangs
}

func newDiscard(t *testing.T) *discard {
	d := &discard{release: make(chan struct{})}
	close(d.release)
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// hang blocks requests until the caller calls the returned function.
func (d *discard) hang() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(chan struct{})
	d.release = held
	return sync.OnceFunc(func() { close(held) })
}

// ServeHTTP accepts a batch.
func (d *discard) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_, err := io.Copy(io.Discard, req.Body)
	d.mu.Lock()
	release := d.release
	d.mu.Unlock()
	select {
	case <-release:
	case <-req.Context().Done():
		return
	}
	if err == nil {
		d.taken.Add(1)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
}

// large is an events table of any database, for rows of many bytes.
type large struct {
	t      *testing.T
	to     *discard
	config string
	// write writes rows of that many bytes, each in its own group and transaction. again resets
	// all rows to PENDING. left counts the rows that are not COMPLETED.
	write func(from, to, bytes int)
	again func()
	left  func() int
	// copies is the most memory that a huge row takes, as a multiple of it.
	copies int
}

// settle waits until that many requests were accepted in all, and every row is COMPLETED. It
// polls rarely, because each poll scans the table.
func (l *large) settle(requests int) {
	l.t.Helper()
	for least := requests; least > 0; {
		within(l.t, testTimeout, func() string {
			n := requests - int(l.to.taken.Load())
			if n >= least {
				return fmt.Sprintf("%d requests of %d have not come", n, requests)
			}
			least = n
			return ""
		})
	}
	within(l.t, testTimeout, func() string {
		n := l.left()
		if n > 0 {
			time.Sleep(200 * time.Millisecond)
		}
		return map[bool]string{true: fmt.Sprintf("%d rows are not COMPLETED", n)}[n > 0]
	})
}

// largeHost is a database for rows of many bytes.
type largeHost struct {
	name string
	make func(t *testing.T) (database string, l *large)
}

func (h largeHost) String() string { return h.name }

// onLarge runs a test on one kind of database, or on each if selected, in parallel. rest is
// the rest of the configuration.
func onLarge(t *testing.T, rest string, test func(l *large)) {
	all := []largeHost{{"sqlite", largeSQLite}, {"mongo", largeMongo}}
	for _, h := range hosts() {
		all = append(all, largeHost{h.name, func(t *testing.T) (string, *large) { return largeSQL(t, h) }})
	}
	for _, h := range servers.Spread(t, all) {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			database, l := h.make(t)
			l.t, l.to = t, newDiscard(t)
			l.config = fmt.Sprintf(`
name: %s
source: {mode: stream, url: %q}
outboxes: [{table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: hook}]
sinks: {hook: {type: webhook, url: %q}}
admin: {listen: %s}
%s`, nameFor(database), database, l.to.URL, adminKey, rest)
			test(l)
		})
	}
}

func largeSQL(t *testing.T, h host) (string, *large) {
	database, _ := h.start(t, nil)
	s := sceneIn(t, h, database, "")
	copies := 7
	if !h.kind.postgres {
		copies = 14 // an UPDATE writes the row into the log twice
	}
	return database, &large{
		copies: copies,
		write: func(from, to, bytes int) {
			for i := from; i <= to; i++ {
				s.numberIn("outbox_events", i, i, "i", bytes)
			}
		},
		again: func() { s.exec("UPDATE outbox_events SET status = 'PENDING'") },
		left:  func() int { return count(t, s.conn, "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'") },
	}
}

func largeSQLite(t *testing.T) (string, *large) {
	database, db := seedFile(t)
	return database, &large{
		copies: 7,
		write: func(from, to, bytes int) {
			for i := from; i <= to; i++ {
				run(t, db, `INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
					VALUES (?, 'EVENT', ?, '{"wide": "' || ? || '"}', 'PENDING', strftime('%Y-%m-%d %H:%M:%f', 'now'))`,
					numbered(i), fmt.Sprint(i), strings.Repeat("x", bytes))
			}
		},
		again: func() { run(t, db, "UPDATE outbox_events SET status = 'PENDING'") },
		left: func() (n int) {
			err := db.QueryRowContext(context.Background(), "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED'").Scan(&n)
			if err != nil {
				t.Fatal(err)
			}
			return n
		},
	}
}

func largeMongo(t *testing.T) (string, *large) {
	chooseMongo(t)
	s := mongoSceneIn(t, servers.StartMongo(t, 1, nil).Database(), "")
	return s.database, &large{
		copies: 16, // of at most 16 MiB
		write: func(from, to, bytes int) {
			for i := from; i <= to; i++ {
				_, err := s.db.Collection("outbox_events").InsertOne(context.Background(), bson.M{
					"_id": numbered(i), "type": "EVENT", "messageGroup": fmt.Sprint(i), "status": "PENDING", "createdAt": time.Now(),
					"payload": `{"wide": "` + strings.Repeat("x", bytes) + `"}`,
				})
				s.must(err)
			}
		},
		again: func() {
			_, err := s.db.Collection("outbox_events").UpdateMany(context.Background(), bson.M{}, bson.M{"$set": bson.M{"status": "PENDING"}})
			s.must(err)
		},
		left: func() int { return s.count(bson.M{"status": bson.M{"$ne": "COMPLETED"}}, "outbox_events") },
	}
}

// Rows of 1 MiB, in all many times the relay's memory limit, at the first start, after a
// reset of all rows, and with polling. By hand, with a hundredth of the number of rows:
//
//	SLUICEBOX_TEST_ROWS=250000 go test -v -run 'TestMemoryOfLargeRows' ./cmd/internal/blackbox
func TestMemoryOfLargeRows(t *testing.T) {
	t.Parallel()
	onLarge(t, "checkpoint: {sweep-interval: 2s}\n", func(l *large) {
		rows := many(l.t, 30_000) / 100
		l.write(1, rows, 1<<20)
		r := start(l.t, l.config)
		r.waitForWithin(`msg="source connected"`, testTimeout+time.Duration(rows)*10*time.Millisecond)
		l.settle(rows)
		l.t.Log("first start")
		r.expectSmall()
		l.again()
		l.settle(2 * rows)
		l.t.Log("sweep")
		r.expectSmall()
		expectStop(l.t, r)
		l.again()
		r = start(l.t, strings.Replace(l.config, "mode: stream", "mode: poll, poll-interval: 50ms", 1))
		r.waitFor("source connected")
		l.settle(3 * rows)
		l.t.Log("polling")
		r.expectSmall()
		expectStop(l.t, r)
	})
}

// A receiver hangs while rows arrive that each fill a large part of the buffer. The relay
// keeps a few of them in memory, for a short time. By hand:
//
//	SLUICEBOX_TEST_HUGE=30x100 go test -v -run 'TestMemoryOfHugeRows' ./cmd/internal/blackbox
func TestMemoryOfHugeRows(t *testing.T) {
	t.Parallel()
	n, size, huge, most, idle, rest := 30, 10, 0, 300, 128, "  buffer-bytes: 16MiB\n"
	if text := os.Getenv(hugeVariable); text != "" {
		if _, err := fmt.Sscanf(text, "%dx%d", &n, &size); err != nil {
			t.Fatalf("%s is %q, must be such as 30x100", hugeVariable, text)
		}
		huge, idle, rest = size, 200, ""
	}
	if raced.Enabled {
		most, idle = 2*most, 2*idle
	}
	onLarge(t, "dispatch:\n  request-timeout: 10m\n"+rest, func(l *large) {
		release := l.to.hang()
		defer release()
		r := start(l.t, l.config)
		r.waitFor("source connected")
		began := time.Now()
		l.write(1, n, size<<20)
		within(l.t, testTimeout, func() string {
			if got := int(r.metric(`sluicebox_rows_captured_total{outbox="outbox_events"}`)); got < n {
				return fmt.Sprintf("%d rows of %d were captured", got, n)
			}
			return ""
		})
		l.t.Logf("captured after %s; resident %d MiB", time.Since(began).Round(time.Millisecond), r.resident()>>20)
		release()
		l.settle(n)
		most := max(most, l.copies*huge)
		if have := r.peak(); have > most<<20 {
			l.t.Errorf("peak memory %d MiB, want at most %d", have>>20, most)
		}
		ended := time.Now()
		within(l.t, testTimeout, func() string {
			if have := r.resident(); have > idle<<20 {
				return fmt.Sprintf("%s after the last row the process has %d MiB", time.Since(ended).Round(time.Second), have>>20)
			}
			return ""
		})
		l.t.Logf("%d rows of %d MiB: at most %d MiB; %d MiB after %s", n, size, r.peak()>>20, r.resident()>>20, time.Since(ended).Round(100*time.Millisecond))
		expectStop(l.t, r)
	})
}
