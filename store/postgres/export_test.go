package postgres

import "github.com/sluicebox/sluicebox/store/ledger"

// Backends returns the backends of the store's ledger.
func (s *Store) Backends() []ledger.Backend {
	return []ledger.Backend{backend{s, s.operator, false}, backend{s, s.spillSession, false}, backend{s, s.replay, true}}
}
