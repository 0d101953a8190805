package mongo_test

import (
	"slices"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// The next leader of a shard kills the sessions of its predecessor, so no other store may have got them.
func TestSessionsOfAClosedStoreAreNotReused(t *testing.T) {
	t.Parallel()
	first := openRelay(t, servers.Mongo(t), "first")
	if err := first.Install(ctx(t)); err != nil {
		t.Fatal(err)
	}
	second, err := first.Beside(store.Settings{Name: "first/1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.AcquireLeadership(ctx(t)); err != nil {
		t.Fatal(err)
	}
	ids := second.Tables.(*mongo.Store).SessionIDs()
	second.Close()
	for _, id := range first.NewSessionIDs(20) {
		if slices.Contains(ids, id) {
			t.Errorf("session %s is used again", id)
		}
	}
}
