package sqlite_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/ledgertest"
	"github.com/sluicebox/sluicebox/store/storetest"
)

// TestLedger runs the suite of the ledger's backends.
func TestLedger(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T) ledgertest.Database {
		d := ledgerDatabase{newFile(t)}
		if err := openStore(t, d.path, "first", 0, flowBox()).Install(ctx(t)); err != nil {
			t.Fatal(err)
		}
		return d
	})
}

type ledgerDatabase struct{ path string }

type ledgerBackend struct {
	ledger.Backend
	store.Leadership
}

// Open implements ledgertest.Database.
func (d ledgerDatabase) Open(t testing.TB, relay string) ledgertest.Backend {
	st := openStore(t, d.path, relay, 0, flowBox())
	return ledgerBackend{st.Backend(), st}
}

func BenchmarkSpill(b *testing.B) {
	r := newRig(b, flowTable, 0, flowBox())
	storetest.BenchmarkSpill(b, r.store, r.epoch)
}

func BenchmarkReplay(b *testing.B) {
	r := newRig(b, flowTable, 0, flowBox())
	storetest.BenchmarkReplay(b, r.store, r.epoch)
}
