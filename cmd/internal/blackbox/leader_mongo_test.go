package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// mongoTakeover is a takeover between relays of a mongoScene.
type mongoTakeover struct {
	takeover
	again func(s *mongoScene, m *member) *member // replaces back
}

// mongoTakeovers are the faults of a leader. After a crash or a freeze its lease of 5 s must
// expire, of which up to a third has passed by then.
func mongoTakeovers() []mongoTakeover {
	join := func(s *mongoScene, m *member) *member { return s.join(m.who) }
	return []mongoTakeover{
		{takeover{name: "killed", within: 6 * time.Second, strike: func(m *member) { m.kill() }}, join},
		{takeover{name: "stopped", within: time.Second, strike: func(m *member) { expectStop(m.t.(*testing.T), m.relay) }}, join},
		{takeover{name: "frozen", within: 6 * time.Second, strike: (*member).freeze}, func(_ *mongoScene, m *member) *member {
			<-time.After(frozen - 5*time.Second) // the elapsed time matters
			m.thaw()
			m.waitFor("leadership lost")
			m.ready()
			return m
		}},
	}
}

// join starts a relay with the scene's name and an application name of its own.
func (s *mongoScene) join(who string) *member {
	s.t.Helper()
	m := &member{who: who}
	m.start(s.t, s.config)
	return m
}

// The leader of two relays fails in several ways under load, and the other takes over. No
// document is lost, and first arrivals are in order. One session writes in each epoch, so a
// thawed relay writes nothing. Only documents in flight arrive again; with claims: on these are
// PROCESSING.
func TestMongoTwoRelays(t *testing.T) {
	t.Parallel()
	for mode, rest := range map[string]string{"late": "", "on": withClaims} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			aMongo(t, rest, func(s *mongoScene) { s.twoRelays(mode) })
		})
	}
}

// twoRelays lets the leader of two relays fail, with a claims mode.
func (s *mongoScene) twoRelays(mode string) {
	s.t.Helper()
	from := s.now()
	who := noteSenders(s.to, 10*time.Millisecond)
	leader, standby := s.join("relay1"), s.join("relay2")
	took, all := map[string][]time.Duration{}, mongoTakeovers()
	faults := crashes(s.t, len(all))
	for i := range faults {
		leader, standby = leaderOf(leader, standby)
		standby.ready()
		what := all[i%len(all)]
		wait := s.write(busy(false))
		who.delivers(leader, time.Now())
		<-time.After(time.Duration(rand.Int64N(int64(time.Second)))) // at random
		struck := time.Now()
		what.strike(leader)
		if what.name == "stopped" {
			struck = who.last(leader)
		}
		took[what.name] = append(took[what.name], who.delivers(standby, struck))
		leader, standby = standby, what.again(s, leader)
		wait()
	}
	rows, again := s.expectAll()
	takenOver := s.audit(from)
	most := takenOver
	if mode == "late" { // the successor writes into the rows in flight first
		most = maxAgain * faults
	}
	if again > most {
		s.t.Errorf("%d documents arrived again in %d takeovers, want at most %d", again, faults, most)
	}
	s.t.Logf("%d documents; %d were in flight at a takeover, %d arrived again", rows, takenOver, again)
	for _, what := range all {
		tell(s.t, what.takeover, took[what.name])
	}
	for _, m := range []*member{leader, standby} {
		expectStop(s.t, m.relay)
	}
}

// now returns the current time of the server's oplog.
func (s *mongoScene) now() *bson.Timestamp {
	s.t.Helper()
	session, err := s.db.Client().StartSession()
	if err != nil {
		s.t.Fatal(err)
	}
	defer session.EndSession(context.Background())
	if err := s.db.RunCommand(mongo.NewSessionContext(context.Background(), session), bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
		s.t.Fatal(err)
	}
	return session.OperationTime()
}

// change is an update of a document in the oplog.
type change struct {
	Operation string `bson:"operationType"`
	NS        struct{ Coll string }
	Key       struct {
		ID any `bson:"_id"` // a text for outbox documents
	} `bson:"documentKey"`
	Session struct{ ID bson.Binary } `bson:"lsid"`     // of a transaction
	At      time.Time                `bson:"wallTime"` // the server's clock, which the relay shares
	Update  struct {
		Fields struct {
			Epoch       int64
			Status      string
			ProcessedAt time.Time `bson:"processedAt"`
		} `bson:"updatedFields"`
	} `bson:"updateDescription"`
}

// changes returns the updates from a time to now.
func (s *mongoScene) changes(from *bson.Timestamp) (all []change) {
	s.t.Helper()
	const marker = "marker"
	if _, err := s.db.Collection(marker).InsertOne(context.Background(), bson.M{"_id": marker}); err != nil {
		s.t.Fatal(err)
	}
	stream, err := s.db.Watch(context.Background(), mongo.Pipeline{
		{{Key: "$match", Value: bson.M{"$or": bson.A{bson.M{"operationType": bson.M{"$in": bson.A{"update", "replace"}}}, bson.M{"ns.coll": marker}}}}},
	}, options.ChangeStream().SetStartAtOperationTime(from))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = stream.Close(context.Background()) }()
	for stream.Next(context.Background()) {
		var c change
		if err := stream.Decode(&c); err != nil {
			s.t.Fatal(err)
		}
		if c.NS.Coll == marker {
			return all
		}
		all = append(all, c)
	}
	s.t.Fatalf("the server's log ends: %v", stream.Err())
	return nil
}

// audit checks the oplog: in each epoch one session writes the outbox documents, in
// transactions, and no document is written before the epoch began, by the writer's clock. It
// returns the number of documents that a leader took over from an earlier one.
func (s *mongoScene) audit(from *bson.Timestamp) (takenOver int) {
	s.t.Helper()
	type hand struct {
		epoch  int64
		status string
	}
	epoch, epochs, began := int64(0), 0, time.Time{}
	writers, hands := map[int64][]string{}, map[string]hand{}
	for _, c := range s.changes(from) {
		if c.NS.Coll == "sluicebox_leader" && c.Update.Fields.Epoch > 0 {
			epoch = c.Update.Fields.Epoch
			epochs, began = epochs+1, c.At
		}
		if !slices.Contains(seedCollections(), c.NS.Coll) {
			continue
		}
		if by := fmt.Sprintf("%x", c.Session.ID.Data); by != "" && !slices.Contains(writers[epoch], by) {
			writers[epoch] = append(writers[epoch], by)
		}
		if at := c.Update.Fields.ProcessedAt; !at.IsZero() && at.Before(began.Add(-time.Millisecond)) {
			s.t.Errorf("in epoch %d, which began at %s, document %v became %s as of %s",
				epoch, began.Format(time.StampMilli), c.Key.ID, c.Update.Fields.Status, at.Format(time.StampMilli))
		}
		document := fmt.Sprint(c.NS.Coll, c.Key.ID)
		was := hands[document]
		if was.status == "PROCESSING" && was.epoch != epoch {
			takenOver++
		}
		if c.Update.Fields.Status == "" {
			c.Update.Fields.Status = was.status
		}
		hands[document] = hand{epoch, c.Update.Fields.Status}
	}
	for epoch, by := range writers {
		if len(by) > 1 {
			s.t.Errorf("in epoch %d the sessions %v wrote outbox documents", epoch, by)
		}
	}
	if epochs < 2 || len(hands) == 0 {
		s.t.Errorf("the oplog has %d changes of the epoch and %d written documents, want at least 2 and 1", epochs, len(hands))
	}
	return takenOver
}
