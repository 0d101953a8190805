package mongo_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// Dates and texts are read from one collection, texts first as the server sorts them.
// Values that are not a time are counted.
func TestDeliveredForms(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	at := time.Date(2024, 2, 29, 12, 0, 0, 1_000_000, time.UTC)
	sent := func(id, created any) bson.D {
		return with(with(pending(id), "status", "COMPLETED"), "createdAt", created)
	}
	r.insert(t, sent("b", at), sent(int32(4), at), sent("c", at.AddDate(0, 0, 1)), sent("d", "2024-02-29T13:00:00.000001+01:00"), sent("e", "soon"),
		sent("f", nil), sent("g", 5), sent("h", bson.A{"x"}), sent(2.5, at), with(pending("i"), "createdAt", at))
	const text, number, date = "d 2024-02-29T12:00:00.000001Z", "4 2024-02-29T12:00:00.001Z", "b 2024-02-29T12:00:00.001Z"
	for _, c := range []struct {
		q       store.DeliveredQuery
		want    string
		undated int
	}{
		{store.DeliveredQuery{}, text + ", " + number + ", " + date + ", c 2024-03-01T12:00:00.001Z", 4},
		{store.DeliveredQuery{Since: at}, number + ", " + date + ", c 2024-03-01T12:00:00.001Z", 4},
		{store.DeliveredQuery{Since: at.Add(-time.Millisecond + time.Microsecond), Until: at}, text, 4},
		{store.DeliveredQuery{Since: at.Add(time.Nanosecond)}, "c 2024-03-01T12:00:00.001Z", 4},
		{store.DeliveredQuery{IDs: []string{"4", "b", "B", "i", "g", ""}, Until: at.AddDate(0, 0, 1)}, number + ", " + date, 1},
	} {
		c.q.Outbox = "events"
		rigs.WantDelivered(t, r.store, c.q, c.want, c.undated)
	}
}

// A request that is being written delays no ping, and a missing request document delays no
// lock. The lease document does not contain requests.
func TestLockRequestCount(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	held := r.lock(t)
	defer held.Release()
	request := func(name string) {
		t.Helper()
		if err := r.store.RequestSavepoint(ctx(t), name, false); err != nil {
			t.Fatal(err)
		}
	}
	request("a")
	rigs.WantRequestCount(t, "a request", held, 1)
	session, err := r.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(ctx(t))
	_, err = session.WithTransaction(ctx(t), func(in context.Context) (any, error) {
		more := bson.D{{Key: "$inc", Value: bson.D{{Key: "version", Value: 5}}}}
		if _, err := r.db.Collection("sluicebox_record").UpdateOne(in, record("relay", "requests"), more); err != nil {
			return nil, err
		}
		rigs.WantRequestCount(t, "an uncommitted request", held, 1)
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rigs.WantRequestCount(t, "a committed request", held, 6)
	if err := r.db.Collection("sluicebox_record").Drop(ctx(t)); err != nil {
		t.Fatal(err)
	}
	rigs.WantRequestCount(t, "no request collection", held, 0)
}
