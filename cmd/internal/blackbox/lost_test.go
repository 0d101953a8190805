package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// auto lets the relay choose between streaming and polling.
func (s *scene) auto() { s.config = strings.Replace(s.config, "mode: stream", "mode: auto", 1) }

// expectMode waits until the relay streams ("stream") or polls ("poll").
func expectMode(t *testing.T, r *relay, mode string) {
	t.Helper()
	within(t, time.Minute, func() string {
		if r.metric(fmt.Sprintf("sluicebox_source_mode{mode=%q}", mode)) != 1 || r.metric("sluicebox_source_connected") != 1 {
			_, readyz := r.get("/readyz?verbose")
			return "the relay is not in mode " + mode + ":\n" + readyz
		}
		return ""
	})
}

// expectLoss waits until the relay has logged a loss of its log.
func expectLoss(t *testing.T, r *relay, words ...string) {
	t.Helper()
	for _, text := range words {
		r.waitFor(text)
	}
	if n := r.metric("sluicebox_source_log_losses_total"); n < 1 {
		t.Errorf("%.0f losses were counted, want at least 1", n)
	}
}

// dropSlot drops a slot that a relay reads.
func (s *scene) dropSlot(name string) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		_, err := s.conn.exec("SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE slot_name = $1 AND active", name)
		if err == nil {
			_, err = s.conn.exec("SELECT pg_drop_replication_slot($1)", name)
		}
		return failure(err)
	})
}

// losesUnderLoad breaks the relay's slot or publication under eight writers. It expects the
// relay to log the loss, deliver every row and stream again.
func (s *scene) losesUnderLoad(spoil func(name string), words ...string) {
	s.t.Helper()
	s.auto()
	r := s.run()
	wait := write(s.t, s.database, load{seconds: 6, clients: 8, rate: 150, scripts: seedScripts(50)})
	arrive(s.t, s.to, 250)
	spoil(nameFor(s.database))
	expectLoss(s.t, r, append([]string{"log lost; taking a new snapshot"}, words...)...)
	wait()
	expectMode(s.t, r, "stream")
	s.expectSet()
	s.load(30)
	s.expectSet()
	expectStop(s.t, r)
}

// The slot is dropped under eight writers. The relay logs the loss, takes a snapshot with a
// new slot, and delivers every row.
func TestTheSlotIsDroppedUnderLoad(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		s.losesUnderLoad(s.dropSlot, "slot", nameFor(s.database))
	})
}

// The relay's host freezes until the slot retains more WAL than the server allows, so that the
// server invalidates it. Every row is delivered.
func TestTheSlotIsInvalidated(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version int) {
		server := servers.Start(t, version, map[string]string{
			"wal_level": "logical", "max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "48MB",
		})
		servers.Exec(t, server.URL, pgTables(), pgTruth, "CREATE TABLE noise (n text)")
		to := sinktest.NewReceiver(t)
		s := &scene{t: t, kind: postgresKind(), database: server.URL, conn: connect(t, server.URL), to: to, config: preset(server.URL, to.URL(), "")}
		s.auto()
		r := s.run()
		s.load(20)
		s.expectSet()
		r.freeze()
		wait := write(t, server.URL, load{seconds: 6, clients: 8, rate: 150, scripts: seedScripts(50)})
		within(t, time.Minute, func() string {
			servers.Exec(t, server.URL, "INSERT INTO noise SELECT repeat(md5(i::text), 100) FROM generate_series(1, 10000) i", "CHECKPOINT")
			return none(t, s.conn, "of pg_replication_slots are intact", "SELECT count(*) FROM pg_replication_slots WHERE wal_status <> 'lost'")
		})
		wait()
		r.thaw()
		within(t, time.Minute, func() string {
			if said := r.said(); !strings.Contains(said, "wal_removed") && !strings.Contains(said, "invalidated") {
				return "the relay does not say what became of the slot"
			}
			return ""
		})
		expectMode(t, r, "stream")
		s.expectSet()
		expectStop(t, r)
	})
}

// The owner's relay recreates a dropped publication.
func TestThePublicationIsDropped(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		s.losesUnderLoad(func(name string) { servers.Exec(s.t, s.database, "DROP PUBLICATION "+name) }, "publication")
	})
}

// A relay that may not recreate the publication polls and logs the statement to run. It
// streams again once the statement was run.
func TestThePublicationOfAnotherOwnerIsDropped(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		who := role(s.t, s.database)
		url := roleURL(s.database, who)
		name := nameFor(url)
		publish := "CREATE PUBLICATION " + name + " FOR TABLE outbox_events, outbox_dispatch_jobs WITH (publish = 'insert', publish_via_partition_root = true)"
		servers.Exec(s.t, s.database, "ALTER ROLE "+who+" REPLICATION", publish)
		s.config = preset(url, s.to.URL(), "")
		s.auto()
		r := s.run()
		wait := write(s.t, s.database, load{seconds: 8, clients: 8, rate: 150, scripts: seedScripts(50)})
		arrive(s.t, s.to, 300)
		servers.Exec(s.t, s.database, "DROP PUBLICATION "+name)
		expectLoss(s.t, r, "log lost; taking a new snapshot", "publication", "log unreadable; polling", "CREATE PUBLICATION", "as the owner")
		expectMode(s.t, r, "poll")
		within(s.t, testTimeout, func() string {
			if _, readyz := r.get("/readyz?verbose"); !strings.Contains(readyz, "polling, because") || !strings.Contains(readyz, "CREATE PUBLICATION") {
				return "the readiness does not say why the relay polls:\n" + readyz
			}
			return ""
		})
		wait()
		s.expectSet()
		servers.Exec(s.t, s.database, publish)
		expectMode(s.t, r, "stream")
		write(s.t, s.database, load{transactions: 400, clients: 8, scripts: seedScripts(50)})()
		s.expectSet()
		expectStop(s.t, r)
	})
}
