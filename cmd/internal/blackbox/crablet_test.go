package blackbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

const crabletConfig = `
name: %s
source: {mode: %s, url: %q, poll-interval: 50ms, poll-batch-size: 50}
outboxes: [{table: crablet_events, layout: crablet, sink: hooks}]
sinks:
  hooks: {type: webhook, url: %q, headers: {X-Tags: '{attr.tags}'}, backoff: {initial: 50ms, max: 500ms}}
admin: {listen: %s}
`

// crabletTopics has two topics by tags, of which one has two publishers.
const crabletTopics = `
name: %s
source: {mode: %s, url: %q, poll-interval: 50ms, poll-batch-size: 50}
outboxes:
  - table: crablet_events
    layout: crablet
    routes:
      - {name: wallet-kafka, sink: kafka, when: {tags-all: [wallet_id]}}
      - {name: wallet-hooks, sink: hooks, when: {tags-all: [wallet_id]}}
      - {name: payments, sink: counts, when: {tags-any: [payment_id, transfer_id]}}
    unmatched: complete
sinks:
  kafka: {type: webhook, url: %q}
  hooks: {type: webhook, url: %q, backoff: {initial: 50ms, max: 500ms}}
  counts: {type: webhook, url: %q}
admin: {listen: %s}
`

// crabletTags are the tags of events.
func crabletTags() []string {
	return []string{"order_id=7", "wallet_id=1", "payment_id=2", "wallet_id=3,transfer_id=4", "wallet_id_old=5"}
}

// crabletWriters append events in overlapping transactions, so that positions commit in another
// order than they were given out. Some transactions are rolled back.
func (s *scene) crabletWriters(transactions int) (wait func()) {
	s.t.Helper()
	var work errgroup.Group
	for range 6 {
		work.Go(func() error {
			conn := connect(s.t, s.database)
			for i := range transactions {
				if err := appendEvents(conn, i%7 != 0); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return sync.OnceFunc(func() {
		if err := work.Wait(); err != nil {
			s.t.Fatal(err)
		}
	})
}

func appendEvents(conn *conn, commit bool) error {
	tx, err := conn.BeginTx(context.Background(), &sql.TxOptions{})
	if err != nil {
		return err
	}
	for range 1 + rand.N(3) {
		_, err := tx.ExecContext(context.Background(), `INSERT INTO crablet_events (type, tags, data, transaction_id) VALUES ('Paid', string_to_array($1, ','), '{"n": 1}', pg_current_xact_id())`, crabletTags()[rand.N(len(crabletTags()))])
		if err != nil {
			return err
		}
		time.Sleep(rand.N(10 * time.Millisecond)) // so that transactions overlap
	}
	if !commit {
		return tx.Rollback()
	}
	return tx.Commit()
}

// Events commit in another order than their positions, and all of them arrive, from the log and by
// polling. None arrives twice, except after a kill. Polling keeps the order of transactions.
func TestCrabletEventsOutOfOrder(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"stream", "poll"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			aPostgres(t, "", func(s *scene) {
				initOutbox(s.t, "crablet", s.database)
				s.config = fmt.Sprintf(crabletConfig, nameFor(s.database), mode, s.database, s.to.URL(), adminKey)
				r := s.run()
				s.crabletWriters(30)()
				arrive(s.t, s.to, len(s.positions()))
				if again := len(s.to.Accepted()) - len(s.positions()); again != 0 {
					s.t.Errorf("%d events arrived again, want none without a crash", again)
				}

				wait := s.crabletWriters(60)
				arrive(s.t, s.to, s.to.Counts().Distinct+50)
				r.kill()
				r = s.run()
				wait()
				arrive(s.t, s.to, len(s.positions()))
				s.checkPositions(mode == "poll")
				expectStop(s.t, r)
			})
		})
	}
}

// Two topics by tags, of which one has two publishers. One publisher is dead: the others get their
// events, and no other event. The dead one gets the events that it has
// missed, in the order in which the other one got them.
func TestCrabletPublishers(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"stream", "poll"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			aPostgres(t, "", func(s *scene) {
				initOutbox(s.t, "crablet", s.database)
				kafka, hooks, counts := &routeReceiver{Receiver: s.to}, &routeReceiver{Receiver: sinktest.NewReceiver(s.t)}, sinktest.NewReceiver(s.t)
				for _, to := range []*routeReceiver{kafka, hooks} {
					to.Script(to.answer)
				}
				s.config = fmt.Sprintf(crabletTopics, nameFor(s.database), mode, s.database, kafka.URL(), hooks.URL(), counts.URL(), adminKey)
				hooks.dead.Store(true)
				r := s.run()
				s.crabletWriters(30)()
				wallets, payments := s.positionsOf("wallet_id=%"), s.positionsOf("payment_id=%", "transfer_id=%")
				expectEvents(s.t, "publisher kafka", kafka.Receiver, wallets)
				expectEvents(s.t, "publisher counts", counts, payments)
				if n := hooks.Counts().Distinct; n > 0 {
					s.t.Errorf("the dead publisher has %d events", n)
				}

				hooks.dead.Store(false)
				expectEvents(s.t, "publisher hooks", hooks.Receiver, wallets)
				if got, want := arrivals(hooks.Receiver), arrivals(kafka.Receiver); !slices.Equal(got, want) {
					s.t.Error("the publishers of a topic got its events in different orders")
				}
				s.pausePublisher(r, kafka.Receiver, hooks.Receiver)
				expectStop(s.t, r)
			})
		})
	}
}

// pausePublisher pauses and resumes publisher kafka by the requests that Crablet's tools send. Meanwhile
// it gets nothing, and hooks gets the events of their topic.
func (s *scene) pausePublisher(r *relay, kafka, hooks *sinktest.Receiver) {
	s.t.Helper()
	ask := func(method, path string, answer any) {
		s.t.Helper()
		status, body := r.ask(method, "/api/outbox/publishers/"+path, "")
		if err := json.Unmarshal([]byte(body), answer); status != http.StatusOK || err != nil {
			s.t.Fatalf("%s %s: %d %s %v", method, path, status, body, err)
		}
	}
	var done struct{}
	expect := func(want string) {
		s.t.Helper()
		var publisher struct{ PublisherName, Status string }
		if ask(http.MethodGet, "kafka", &publisher); publisher.PublisherName != "kafka" || publisher.Status != want {
			s.t.Errorf("publisher kafka is %+v, want %s", publisher, want)
		}
	}
	expect("ACTIVE")
	ask(http.MethodPost, "kafka/pause", &done)
	expect("PAUSED")
	before := kafka.Counts().Distinct
	s.crabletWriters(5)()
	wallets := s.positionsOf("wallet_id=%")
	expectEvents(s.t, "publisher hooks", hooks, wallets)
	within(s.t, testTimeout, func() string {
		lag := map[string]int{}
		if ask(http.MethodGet, "lag", &lag); lag["kafka"] != len(wallets)-before || lag["hooks"] != 0 {
			return fmt.Sprintf("the lag is %v, want %d events of kafka", lag, len(wallets)-before)
		}
		return ""
	})
	if got := kafka.Counts().Distinct; got != before {
		s.t.Errorf("the paused publisher got %d events", got-before)
	}
	ask(http.MethodPost, "kafka/resume", &done)
	expect("ACTIVE")
	expectEvents(s.t, "publisher kafka", kafka, wallets)
}

// arrivals returns the ids of accepted rows, in the order of their arrival.
func arrivals(to *sinktest.Receiver) (ids []string) {
	accepted := to.Accepted()
	slices.SortStableFunc(accepted, func(a, b sinktest.Received) int { return a.At.Compare(b.At) })
	for _, got := range accepted {
		ids = append(ids, got.ID)
	}
	return ids
}

// expectEvents waits until a publisher has exactly these events, each once.
func expectEvents(t *testing.T, who string, to *sinktest.Receiver, want []string) {
	t.Helper()
	arrive(t, to, len(want))
	got := slices.Sorted(slices.Values(arrivals(to)))
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("%s has %d events, want %d, or others", who, len(got), len(want))
	}
}

// positions returns the positions of all events, in the order of their transactions.
func (s *scene) positions() (all []string) {
	s.t.Helper()
	return s.positionsOf("%")
}

// positionsOf is positions of the events with a tag like one of these.
func (s *scene) positionsOf(tags ...string) (all []string) {
	s.t.Helper()
	const events = "SELECT e.position::text FROM crablet_events e WHERE EXISTS (SELECT FROM unnest(e.tags) AS tag WHERE tag LIKE ANY (string_to_array($1, ','))) ORDER BY e.transaction_id, e.position"
	err := s.conn.each(events, []any{strings.Join(tags, ",")}, func(scan func(...any) error) error {
		var position string
		err := scan(&position)
		all = append(all, position)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// checkPositions checks that every event arrived, and no other, in order if asked.
func (s *scene) checkPositions(ordered bool) {
	s.t.Helper()
	want, got, seen := s.positions(), []string(nil), map[string]bool{}
	accepted := s.to.Accepted()
	slices.SortStableFunc(accepted, func(a, b sinktest.Received) int { return a.At.Compare(b.At) })
	for _, e := range accepted {
		if !seen[e.ID] {
			seen[e.ID], got = true, append(got, e.ID)
		}
	}
	s.t.Logf("%d events, %d arrived again after the kill", len(want), len(accepted)-len(got))
	if !ordered {
		slices.Sort(want)
		slices.Sort(got)
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("got %d events, want %d, or their order differs", len(got), len(want))
	}
	if slices.IsSortedFunc(s.positions(), func(a, b string) int { return len(a) - len(b) }) && slices.IsSorted(s.positions()) {
		s.t.Error("positions are in the order of transactions: the test shows nothing")
	}
}
