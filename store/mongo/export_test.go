package mongo

import "github.com/sluicebox/sluicebox/store/ledger"

// Backend returns the backend of the store's ledger.
func (s *Store) Backend() ledger.Backend { return backend{s} }
