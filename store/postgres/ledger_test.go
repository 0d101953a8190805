package postgres_test

import (
	"context"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/ledgertest"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestLedger runs the suite of the ledger's backends on each session that is one.
func TestLedger(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		servers.Exec(t, url, openStore(t, url, 0, flowBox).Script())
		for i, purpose := range []string{"records", "spilled rows", "replays"} {
			t.Run(purpose, func(t *testing.T) {
				ledgertest.Run(t, func(t *testing.T) ledgertest.Database {
					servers.Exec(t, url, "TRUNCATE sluicebox.leader, sluicebox.record, sluicebox.queue")
					return ledgerDatabase{url, i}
				})
			})
		}
	})
}

type ledgerDatabase struct {
	url     string
	purpose int
}

type ledgerBackend struct {
	ledger.Backend
	store.Leadership
}

// Open implements ledgertest.Database.
func (d ledgerDatabase) Open(t testing.TB, relay string) ledgertest.Backend {
	st, err := postgres.New(postgres.Config{URL: d.url, Name: relay, Outboxes: []store.Outbox{flowBox}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return ledgerBackend{st.Backends()[d.purpose], st}
}

// TestUnfinishedUpdateIsTerminated: an update that a frozen leader does not finish delays the
// next leader only for a short time, and writes nothing.
func TestUnfinishedUpdateIsTerminated(t *testing.T) {
	aVersion(t, func(t *testing.T, url string) {
		r := newRig(t, url, flowTable, 0, flowBox)
		for _, backend := range r.store.Backends() {
			begun, resume, c := make(chan struct{}), make(chan struct{}), ctx(t)
			update := rigs.Async(func() (int, error) {
				return 0, backend.Update(c, r.epoch, ledger.Full, func(ctx context.Context, tx ledger.Tx) error {
					_, err := tx.Get(ctx, "kind", "key")
					close(begun)
					<-resume
					if err != nil {
						return err
					}
					return tx.Put(ctx, "kind", ledger.Record{Key: "key", Body: []byte("{}")})
				})
			})
			<-begun
			next := openStore(t, url, 0, flowBox)
			epoch, err := next.AcquireLeadership(ctx(t))
			if err != nil || epoch != r.epoch+1 {
				t.Errorf("got epoch %d, %v, want %d", epoch, err, r.epoch+1)
			}
			close(resume)
			if a := <-update; a.Err == nil {
				t.Error("the update of the former leader succeeded")
			}
			if n := ask[int](t, r.conn, "SELECT count(*) FROM sluicebox.record WHERE kind = 'kind'"); n != 0 {
				t.Errorf("the former leader wrote %d records", n)
			}
			if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
