package sqlite

import "github.com/sluicebox/sluicebox/store/ledger"

// LastCommit returns the durability of the store's last write transaction.
func (s *Store) LastCommit() Durability { return s.writer.conn.durability }

// Backend returns the backend of the store's ledger.
func (s *Store) Backend() ledger.Backend { return backend{s} }
