package blackbox

import (
	"context"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// databaseDisk is the size of the disk of a database in bytes. A new MySQL needs most of it.
const databaseDisk = 512 << 20

// The disk of a database is full while rows are delivered, so that no outcome can be written. The relay stays
// alive. Once the disk has room, and the server was restarted, all rows are COMPLETED, the first arrivals of
// each group in order. None has paid for it.
//
//	SLUICEBOX_TEST_CRASHES=1 go test -v -run TestDiskOfADatabaseFull ./cmd/internal/blackbox
func TestDiskOfADatabaseFull(t *testing.T) {
	t.Parallel()
	if os.Getenv(crashesVariable) == "" {
		t.Skip("set " + crashesVariable + " to fill the disks of databases")
	}
	onHosts(t, hosts(), func(t *testing.T, h host) {
		database, server := h.start(t, nil)
		disk := server.(interface{ OnDisk(int64) *servers.Disk }).OnDisk(databaseDisk)
		s := sceneIn(t, h, database, "")
		r := s.run()
		const each, groups = 500, "i % 50"
		s.number(1, each, groups)
		s.untilCompleted("")

		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			return sinktest.Answer{Status: http.StatusServiceUnavailable}
		})
		s.number(each+1, 2*each, groups)
		disk.Fill(0)
		last := s.fillTables(2 * each)
		s.to.Script(nil)
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
			if status, body := r.get("/livez"); status != http.StatusOK {
				t.Errorf("the relay is not alive while the disk is full: %d %s", status, body)
			}
		}
		disk.Free()
		server.Restart(nil)
		// The ids leave a gap, because the outcome of the last statement is not known.
		s.number(last+1000, last+1000+each, groups)
		s.untilCompleted("")
		rows := count(t, s.conn, "SELECT count(*) FROM outbox_events")
		arrive(t, s.to, rows)
		again := checkNumbered(t, s.to.Accepted())
		if left := none(t, s.conn, "paid for the full disk", "SELECT count(*) FROM outbox_events WHERE retry_count > 0"); left != "" {
			t.Error(left)
		}
		t.Logf("%d rows, %d again", rows, again)
		expectStop(t, r)
	})
}

// fillTables inserts rows behind one until the database refuses them, and returns the last one that it may have.
func (s *scene) fillTables(last int) int {
	s.t.Helper()
	const each, wide = 100, 8 << 10
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // MySQL may wait for room
		_, err := s.conn.ExecContext(ctx, s.numbered("outbox_events", last+1, last+each, "i % 50", wide))
		cancel()
		last += each
		if err != nil {
			s.t.Logf("row %d: %v", last, err)
			return last
		}
	}
	s.t.Fatalf("the disk is not full after %d rows", last)
	return last
}
