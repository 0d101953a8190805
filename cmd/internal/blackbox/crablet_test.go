package blackbox

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
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
		_, err := tx.ExecContext(context.Background(), `INSERT INTO crablet_events (type, tags, data, transaction_id) VALUES ('Paid', ARRAY['order_id=7'], '{"n": 1}', pg_current_xact_id())`)
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
				if out, errs, code := command(s.t, nil, "init", "--outbox", "crablet", "--source", s.database, "--apply"); code != 0 {
					s.t.Fatalf("init --outbox: exit code %d, want 0\n%s%s", code, out, errs)
				}
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

// positions returns the positions of all events, in the order of their transactions.
func (s *scene) positions() (all []string) {
	s.t.Helper()
	err := s.conn.each("SELECT e.position::text FROM crablet_events e ORDER BY e.transaction_id, e.position", nil, func(scan func(...any) error) error {
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
