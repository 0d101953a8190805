package mysql

import "github.com/sluicebox/sluicebox/store/ledger"

// Backend returns the backend of the store's spilled rows.
func (s *Store) Backend() ledger.Backend { return backend{s, s.spillSession} }
