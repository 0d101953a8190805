package poll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// polled adapts a dispatcher to the lanes of a source.
type polled struct{ *dispatch.Dispatcher }

func (p polled) Room(string) int { return p.Dispatcher.Room() }

// receiver accepts every row, but rows of the bad groups only once it is healthy. It signals
// the arrival of rows.
type receiver struct {
	mu   sync.Mutex
	well bool
	took map[string][]string // ids by group, in order of arrival
	at   map[string]time.Time
	more chan struct{}
}

func (r *receiver) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Atomic, MaxItems: 100, MaxBytes: 1 << 20}
}

func (r *receiver) Deliver(_ context.Context, msgs []sink.Message) sink.Result {
	r.mu.Lock()
	bad := func(m sink.Message) bool { return strings.HasPrefix(m.Group.Name, "bad") }
	if !r.well && slices.ContainsFunc(msgs, bad) {
		r.mu.Unlock()
		return sink.Result{Outcome: sink.Outcome{Class: sink.Rejected, Detail: "bad"}}
	}
	for _, m := range msgs {
		r.took[m.Group.Name] = append(r.took[m.Group.Name], m.ID)
		r.at[m.ID] = time.Now()
	}
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

// wait blocks until the rows fulfil a condition.
func (r *receiver) wait(t *testing.T, what string, fulfilled func() bool) {
	t.Helper()
	late := time.After(60 * time.Second)
	for {
		r.mu.Lock()
		ok := fulfilled()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.more:
		case <-late:
			t.Fatalf("%s: it does not come to that; %d groups were taken", what, len(r.took))
		}
	}
}

type watch struct{}

func (watch) Claimed(store.ClaimResult, int)                              {}
func (watch) Requested(dispatch.RequestInfo, *sink.Result, time.Duration) {}
func (watch) BreakersChanged([]dispatch.OpenBreaker)                      {}
func (watch) Stalled(*dispatch.LaneInfo)                                  {}
func (watch) Settled(*store.Item, *store.Outcome)                         {}
func (watch) Vanished([]*store.Item)                                      {}
func (watch) RowsSpilled(int)                                             {}
func (watch) RowUnspillable(*store.Item, error)                           {}
func (watch) UnspillableCleared()                                         {}
func (watch) StoreFailed(string, error)                                   {}
func (watch) Refused(store.Ref, string, error)                            {}
func (watch) Connected()                                                  {}
func (watch) Disconnected(error, time.Duration)                           {}

// pollingRelay is a polling relay of one outbox on PostgreSQL.
type pollingRelay struct {
	url   string
	recv  *receiver
	lanes *dispatch.Dispatcher
	stop  func()
}

func startRelay(t *testing.T, url string, cfg poll.Config, dcfg dispatch.Config) *pollingRelay {
	t.Helper()
	st, err := pgstore.New(pgstore.Config{URL: url, Name: "poll", Outboxes: cfg.Outboxes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	if err := st.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	epoch, err := st.AcquireLeadership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &pollingRelay{url: url, recv: &receiver{took: map[string][]string{}, at: map[string]time.Time{}, more: make(chan struct{}, 1)}}
	r.lanes = dispatch.New(dcfg, dispatch.Options{Store: st, Sink: r.recv, Observer: watch{}, Epoch: epoch, DrainTimeout: time.Second})
	src := poll.New(cfg, st, polled{r.lanes})
	ctx, cancel := context.WithCancel(context.Background())
	parts, ctx := errgroup.WithContext(ctx)
	batches := make(chan capture.Batch, 16)
	parts.Go(func() error { return capture.Follow(ctx, src, "", batches, watch{}) })
	parts.Go(func() error { return r.take(ctx, batches) })
	parts.Go(func() error { return r.lanes.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := parts.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// take appends batches to the lanes while the buffer has room.
func (r *pollingRelay) take(ctx context.Context, in <-chan capture.Batch) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-in:
			for r.lanes.Room() <= 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Millisecond):
				}
			}
			r.lanes.Append(b.Items, nil)
		}
	}
}

// TestBlockedGroupsAndLockedRows runs eight writers beside a polling relay. Some groups are
// blocked, together larger than a batch and than the buffer, and some rows stay locked by
// another session. The other groups must be delivered, and these too once they can be. Each
// group stays in order, and no row is lost or delivered twice.
func TestBlockedGroupsAndLockedRows(t *testing.T) {
	t.Parallel()
	const (
		writers, rows = 8, 150 // rows of each writer
		groups        = 40
	)
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t, version)
			servers.Exec(t, url, ddl.Postgres().FlowCatalyst("outbox_events"), `
INSERT INTO outbox_events (id, message_group, payload, created_at)
SELECT 'bad ' || lpad(i::text, 5, '0'), 'bad ' || i % 10, '{}', now() - interval '1 day' FROM generate_series(1, 3000) i`, `
INSERT INTO outbox_events (id, message_group, payload, created_at)
SELECT 'locked ' || g || ' ' || i, 'locked ' || g, '{}', now() - interval '1 hour' FROM generate_series(1, 3) g, generate_series(1, 5) i`)
			lock := begin(t, url, "SELECT FROM outbox_events WHERE id LIKE 'locked % 1' FOR UPDATE")
			cfg := poll.Config{Interval: 50 * time.Millisecond, BatchSize: 100, Backoff: poll.DefaultBackoff(), Outboxes: outboxes("shop")}
			dcfg := dispatch.DefaultConfig()
			dcfg.OnFailed, dcfg.BufferRows, dcfg.APIBatchSize = dispatch.Block, 300, 20
			dcfg.Backoff.Initial, dcfg.Backoff.Max = 20*time.Millisecond, 100*time.Millisecond
			r := startRelay(t, url, cfg, dcfg)

			var work errgroup.Group
			for w := range writers {
				work.Go(func() error { return write(t.Context(), url, w, rows, groups) })
			}
			if err := work.Wait(); err != nil {
				t.Fatal(err)
			}
			r.recv.wait(t, "the groups of the writers", func() bool {
				n := 0
				for group, ids := range r.recv.took {
					if strings.HasPrefix(group, "g") {
						n += len(ids)
					}
				}
				return n >= writers*rows
			})
			r.recv.mu.Lock()
			for g := range 3 {
				if ids := r.recv.took[fmt.Sprint("locked ", g+1)]; len(ids) > 0 {
					t.Errorf("behind a locked row, %q were taken", ids)
				}
			}
			r.recv.mu.Unlock()
			if stats := r.lanes.Stats(); stats.Rows > 300+100 || stats.Lanes["blocked"] != 10 {
				t.Errorf("at the end lanes hold %+v", stats)
			}
			if err := lock.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.recv.wait(t, "the rows that were locked", func() bool {
				return len(r.recv.took["locked 1"])+len(r.recv.took["locked 2"])+len(r.recv.took["locked 3"]) == 15
			})
			r.recv.mu.Lock()
			r.recv.well = true
			r.recv.mu.Unlock()
			for i := range 10 {
				lane := dispatch.LaneName{LaneKey: store.LaneKey{Outbox: "shop", Kind: "EVENT", Group: store.GroupOf(fmt.Sprint("bad ", i))}}
				if err := r.lanes.Skip(t.Context(), lane, "known"); err != nil {
					t.Fatal(err)
				}
			}
			r.recv.wait(t, "the rows behind those that failed", func() bool {
				n := 0
				for i := range 10 {
					n += len(r.recv.took[fmt.Sprint("bad ", i)])
				}
				return n == 3000-10
			})
			r.stop()
			r.check(t)
		})
	}
}

// begin opens a transaction of another session.
func begin(t *testing.T, url, sql string) pgx.Tx {
	t.Helper()
	tx, err := servers.Connect(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return tx
}

// write inserts rows, one to a transaction. Each group has one writer, so that its
// created_at values are in commit order.
func write(ctx context.Context, url string, writer, rows, groups int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for i := range rows {
		group := fmt.Sprintf("g%d.%d", writer, i%(groups/8))
		_, err := conn.Exec(ctx, "INSERT INTO outbox_events (id, message_group, payload, created_at) VALUES ($1, $2, '{}', clock_timestamp())",
			fmt.Sprintf("%d.%05d", writer, i), group)
		if err != nil {
			return errors.Join(err, conn.Close(ctx))
		}
	}
	return conn.Close(ctx)
}

// check compares the received rows with the table.
func (r *pollingRelay) check(t *testing.T) {
	t.Helper()
	conn := servers.Connect(t, r.url)
	rows, err := conn.Query(t.Context(), "SELECT id FROM outbox_events WHERE status <> 'FAILED' ORDER BY created_at, id")
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	place := map[string]int{}
	for i, id := range want {
		place[id] = i
	}
	seen := map[string]bool{}
	for group, ids := range r.recv.took {
		for i, id := range ids {
			if seen[id] {
				t.Errorf("row %s was taken twice", id)
			}
			seen[id] = true
			if i > 0 && place[ids[i-1]] > place[id] {
				t.Errorf("group %s: %s was taken after %s", group, id, ids[i-1])
			}
		}
	}
	if len(seen) != len(want) {
		t.Errorf("%d rows were taken, %d were written", len(seen), len(want))
	}
	var open, failed int
	err = conn.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE status NOT IN ('COMPLETED', 'FAILED')),
  count(*) FILTER (WHERE status = 'FAILED') FROM outbox_events`).Scan(&open, &failed)
	if err != nil || open != 0 || failed != 10 {
		t.Errorf("%d rows are not settled, %d are FAILED, %v", open, failed, err)
	}
}
