package blackbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// scriptsOfOwnGroups give each writer its own groups. A group's created_at is then in commit
// order, which polling requires.
func scriptsOfOwnGroups() []script {
	scripts := seedScripts(6)
	for i := range scripts {
		scripts[i].ownGroups = true
	}
	return scripts
}

// With mode poll, eight writers write beside a blocked group, which has more rows than a batch
// and the buffer, and three groups with a locked first row. The writers' rows are delivered
// in order meanwhile, and the others in order once they are released.
func TestPollingOnly(t *testing.T) {
	t.Parallel()
	const rest = "dispatch: {on-failed: block, global-buffer-size: 300, api-batch-size: 20}\n"
	// It needs its own server, because the lock would delay every new slot of a shared one.
	anOwnScene(t, servers.Spread(t, hosts()), map[string]string{"wal_level": "replica"}, rest, func(s *scene, _ ownServer) {
		t, to := s.t, s.to
		s.config = strings.Replace(s.config, "mode: stream", "mode: poll, poll-interval: 50ms, poll-batch-size: 100", 1)
		const blocked, locked = 2000, 3 * 5
		const insert = `INSERT INTO outbox_events (id, type, message_group, payload, status, created_at)
			SELECT id, 'EVENT', g, '{"id": "' || id || '"}', 'PENDING', now() - interval '1' %s FROM (SELECT '%s' || lpad(concat(i), 12 - %d, '0') id, '%s' g FROM %s) numbered ORDER BY id`
		s.exec(fmt.Sprintf(insert, "day", "B", 0, "blocked", fmt.Sprintf(s.kind.numbers, 1, blocked)))
		for g := range 3 {
			s.exec(fmt.Sprintf(insert, "hour", fmt.Sprint("L", g+1), 1, fmt.Sprint("locked ", g+1), fmt.Sprintf(s.kind.numbers, 1, 5)))
		}
		poison(to, sinktest.Answer{Status: 400}, "B000000000001")
		unlock := s.lock("outbox_events WHERE id LIKE 'L_00000000001'")

		r := s.run()
		write(t, s.database, load{seconds: 6, clients: 8, rate: 300, scripts: scriptsOfOwnGroups()})()
		rows := s.rows() - blocked - locked
		arrive(t, to, rows)
		if early := slices.ContainsFunc(to.Accepted(), func(r sinktest.Received) bool { return r.ID[0] == 'L' || r.ID[0] == 'B' }); early {
			t.Error("a row was accepted behind a locked or FAILED one")
		}
		unlock()
		arrive(t, to, rows+locked)
		to.Script(nil)
		r.operate("lanes", "skip", "--group", "blocked", "--reason", "a test")
		arrive(t, to, rows+locked+blocked-1)
		within(t, testTimeout, func() string {
			return none(t, s.conn, "are unsettled", "SELECT count(*) FROM outbox_events WHERE status <> 'COMPLETED' AND id <> 'B000000000001'")
		})
		taken := to.Accepted()
		if len(taken) != rows+locked+blocked-1 {
			t.Errorf("%d arrivals of %d rows", len(taken), rows+locked+blocked-1)
		}
		last := map[string]string{}
		seed := slices.DeleteFunc(slices.Clone(taken), func(r sinktest.Received) bool {
			if r.ID[0] != 'L' && r.ID[0] != 'B' {
				return false
			}
			if group := r.ID[:2]; r.ID <= last[group] {
				t.Errorf("%s arrived after %s", r.ID, last[group])
			} else {
				last[group] = r.ID
			}
			return true
		})
		oracle{"EVENT", "events"}.checkOrder(t, s.conn, seed)
		oracle{"DISPATCH_JOB", "jobs"}.checkOrder(t, s.conn, seed)
		expectStop(t, r)
	})
}

// legacy is the processor that the relay replaces. It claims, sends and completes rows like
// the FlowCatalyst processor. Every fifth batch it crashes, leaves its rows in PROCESSING,
// and restarts.
type legacy struct {
	conn *conn
	sent map[string]bool
	left map[string]time.Time // earliest time of their claim
}

// run processes batches until the context ends.
func (l *legacy) run(ctx context.Context) error {
	for batch := 1; ctx.Err() == nil; batch++ {
		began := time.Now()
		ids, err := l.claim()
		if err != nil {
			return err
		}
		for _, id := range ids {
			if batch%5 == 0 {
				l.left[id] = began
			} else {
				l.sent[id] = true
			}
		}
		if batch%5 != 0 {
			if _, err := l.conn.exec("UPDATE outbox_events SET status = 'COMPLETED', processed_at = now() WHERE id IN (" + quoted(ids...) + ")"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // the poll interval
		}
	}
	return nil
}

// claim claims the next batch.
func (l *legacy) claim() (ids []string, err error) {
	ctx := context.Background()
	// Without this it would take gap locks on MySQL, and deadlock with the writers.
	tx, err := l.conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	rows, err := tx.QueryContext(ctx, "SELECT id FROM outbox_events WHERE status = 'PENDING' ORDER BY message_group, created_at LIMIT 5 FOR UPDATE SKIP LOCKED")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE outbox_events SET status = 'PROCESSING', processed_at = CURRENT_TIMESTAMP(6) WHERE id IN ("+quoted(ids...)+")"); err != nil {
		return nil, err
	}
	return ids, tx.Commit()
}

// A legacy processor works on the same table, under load. No row is sent by both. The rows of
// its crashes are sent after the takeover timeout and not earlier, and each group is in order.
func TestBesideALegacyProcessor(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	rest := fmt.Sprintf("dispatch: {takeover: timeout, processing-timeout-seconds: %d, api-batch-size: 1}\n", int(timeout.Seconds()))
	aScene(t, rest, func(s *scene) {
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Delay: 25 * time.Millisecond} })
		r := s.run()
		old := &legacy{conn: connect(s.t, s.database), sent: map[string]bool{}, left: map[string]time.Time{}}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- old.run(ctx) }()
		write(s.t, s.database, load{seconds: 6, clients: 8, rate: 300, scripts: seedScripts(20)})()
		stop()
		if err := <-ended; err != nil {
			s.t.Fatal(err)
		}
		arrive(s.t, s.to, s.rows()-len(old.sent))
		settle(s.t, s.conn)

		groups, last := oracle{"EVENT", "events"}.groups(s.t, s.conn), map[string]int{}
		for _, got := range s.to.Accepted() {
			if got.Kind != "EVENT" {
				continue
			}
			if old.sent[got.ID] {
				s.t.Errorf("row %s was sent by both, want one", got.ID)
			}
			if claimed, was := old.left[got.ID]; was && got.At.Sub(claimed) < timeout {
				s.t.Errorf("row %s was sent %s after the other had claimed it", got.ID, got.At.Sub(claimed))
			}
			var p struct{ N int }
			if err := json.Unmarshal(got.Payload, &p); err != nil {
				s.t.Fatal(err)
			}
			if g := groups[got.ID]; p.N <= last[g] {
				s.t.Errorf("%s: row %d arrived after row %d", g, p.N, last[g])
			} else {
				last[g] = p.N
			}
		}
		if len(old.sent) == 0 || len(old.left) == 0 {
			s.t.Errorf("the legacy processor sent %d rows and crashed with %d: the test is inconclusive", len(old.sent), len(old.left))
		}
		s.t.Logf("%d rows, %d sent by the other, which died with %d", s.rows(), len(old.sent), len(old.left))
		expectStop(s.t, r)
	})
}
