package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/ledger"
)

// Backend returns the backend of the store's ledger.
func (s *Store) Backend() ledger.Backend { return backend{s} }

// SessionIDs returns the ids of the sessions that the leader's document names.
func (s *Store) SessionIDs() []string {
	on := s.server.conn
	return []string{on.writeSession.ID().String(), on.outcomeSession.ID().String()}
}

// NewSessionIDs returns the ids of n sessions of the same client.
func (s *Store) NewSessionIDs(n int) (ids []string) {
	for range n {
		session, err := s.server.conn.client.StartSession()
		if err != nil {
			panic(err)
		}
		ids = append(ids, session.ID().String())
		defer session.EndSession(context.Background())
	}
	return ids
}

// RecordWrite records the time of a write, as if the store had made it.
func (s *Store) RecordWrite(at *bson.Timestamp) { s.server.conn.recordWrite(at) }
