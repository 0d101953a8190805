package postgres

import (
	"time"

	"github.com/sluicebox/sluicebox/store/ledger"
)

// Backends returns the backends of the store's ledger.
func (s *Store) Backends() []ledger.Backend {
	return []ledger.Backend{backend{s, s.operator, false}, backend{s, s.spillSession, false}, backend{s, s.replay, true}}
}

// Idle makes every session test its connection before its next call, as after a long pause.
func (s *Store) Idle() {
	for _, one := range s.sessions() {
		one.used = time.Time{}
	}
}
