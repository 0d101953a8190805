package memory_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store/ledger/ledgertest"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

func TestBackend(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) ledgertest.Database { return database{memory.New()} })
}

type database struct{ *memory.Database }

// Open implements ledgertest.Database.
func (d database) Open(_ testing.TB, relay string) ledgertest.Backend { return d.Backend(relay) }
