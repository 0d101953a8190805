package postgres_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/ledgertest"
	"github.com/sluicebox/sluicebox/store/postgres"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestLedger runs the suite of the ledger's backends on each session that is one.
func TestLedger(t *testing.T) {
	eachVersion(t, func(t *testing.T, url string) {
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
