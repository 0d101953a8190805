package mongo

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/ledger"
)

// Backend returns the backend of the store's ledger.
func (s *Store) Backend() ledger.Backend { return backend{s} }

// RecordWrite records the time of a write, as if the store had made it.
func (s *Store) RecordWrite(at *bson.Timestamp) { s.server.conn.recordWrite(at) }
