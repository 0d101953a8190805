package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// memberTimeout is the timeout of a call to one member.
const memberTimeout = 2 * time.Second

// doc returns a document of alternating names and values. The first name of a command is
// its name.
func doc(pairs ...any) bson.D {
	var d bson.D
	for i := 0; i+1 < len(pairs); i += 2 {
		d = append(d, bson.E{Key: fmt.Sprint(pairs[i]), Value: pairs[i+1]})
	}
	return d
}

// Run runs a command in a database of the set, on its primary, and returns the answer.
func (s *MongoSet) Run(database string, command bson.D) bson.Raw {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.tb.Context()), connectTimeout)
	defer cancel()
	client, err := openMongo(s.URL)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer closeMongo(client)
	answer, err := client.Database(database).RunCommand(ctx, command).Raw()
	if err != nil {
		s.tb.Fatalf("%v, in: %v", err, command)
	}

	return answer
}

// runCommand runs a command on one member, in any state. After memberTimeout it fails.
func (m *MongoMember) runCommand(ctx context.Context, user *url.Userinfo, command bson.D) (bson.Raw, error) {
	return m.runCommandWithin(ctx, memberTimeout, user, command)
}

// runCommandWithin is runCommand with another timeout.
func (m *MongoMember) runCommandWithin(ctx context.Context, timeout time.Duration, user *url.Userinfo, command bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	at := url.URL{Scheme: "mongodb", User: user, Host: m.Address, Path: "/", RawQuery: "directConnection=true"}
	if user != nil {
		at.RawQuery += "&authSource=admin"
	}
	client, err := openMongo(at.String())
	if err != nil {
		return nil, err
	}
	defer closeMongo(client)
	return client.Database("admin").RunCommand(ctx, command).Raw()
}

// initiate initiates a set of the members.
func (s *MongoSet) initiate() {
	s.tb.Helper()
	var members []bson.D
	for i, m := range s.Members {
		members = append(members, doc("_id", i, "host", m.Address))
		m.single = len(s.Members) == 1
	}
	settings := doc("electionTimeoutMillis", 1000, "heartbeatIntervalMillis", 500)
	config := doc("_id", mongoSet, "members", members, "settings", settings)
	if _, err := s.Members[0].runCommandWithin(s.tb.Context(), connectTimeout, nil, doc("replSetInitiate", config)); err != nil {
		s.tb.Fatal(err)
	}
}

// awaitHealth waits until the set has a primary, and all other members are secondaries.
func (s *MongoSet) awaitHealth() {
	s.tb.Helper()
	if s.standalone {
		return
	}

	s.await("become healthy", func(ctx context.Context) error {
		answer, err := s.Members[0].runCommand(ctx, s.user, doc("replSetGetStatus", 1))
		if err != nil {
			return err
		}

		var status struct {
			Members []struct {
				Name  string
				State string `bson:"stateStr"`
			}
		}

		if err := bson.Unmarshal(answer, &status); err != nil {
			return err
		}

		primary := false
		for _, m := range status.Members {
			if m.State != "PRIMARY" && m.State != "SECONDARY" {
				return fmt.Errorf("%s is %s", m.Name, m.State)
			}
			primary = primary || m.State == "PRIMARY"
		}

		if !primary {
			return fmt.Errorf("none of %d members is primary", len(status.Members))
		}

		return nil
	})
}

// await calls try until it succeeds.
func (s *MongoSet) await(what string, try func(ctx context.Context) error) {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.tb.Context()), waitTimeout)
	defer cancel()
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			s.tb.Fatalf("the set does not %s: last error %v", what, err)
		case <-tick.C:
		}
	}
}

// Primary waits until a running, unfrozen member accepts writes, and returns it.
func (s *MongoSet) Primary() (primary *MongoMember) {
	s.tb.Helper()
	s.await("have a primary", func(ctx context.Context) error {
		for _, m := range s.Members {
			if m.frozen || !m.process.running() {
				continue
			}
			answer, err := m.runCommand(ctx, s.user, doc("hello", 1))
			if err != nil {
				continue // the member may be stopping
			}
			if writable, _ := answer.Lookup("isWritablePrimary").BooleanOK(); writable {
				primary = m
				return nil
			}
		}
		return fmt.Errorf("none of %d members takes writes", len(s.Members))
	})

	return primary
}

// AwaitMajority waits until a majority of the set has acknowledged a write. That can be
// long after the election of a primary, because members that follow a frozen one wait for
// it.
func (s *MongoSet) AwaitMajority() {
	s.tb.Helper()
	s.await("take a write", func(ctx context.Context) error {
		m := s.Primary()
		note := doc("insert", "majority", "documents", []bson.D{doc("at", time.Now())},
			"writeConcern", doc("w", "majority", "wtimeout", memberTimeout.Milliseconds()))
		answer, err := m.runCommand(ctx, s.user, note)
		if err != nil {
			return err
		}
		if late, err := answer.LookupErr("writeConcernError"); err == nil {
			return errors.New(late.String())
		}
		return nil
	})
}

// StepDown makes the primary step down, and returns it once another member is primary. In a
// set of one member the same member returns after a second.
func (s *MongoSet) StepDown() (old *MongoMember) {
	s.tb.Helper()
	old = s.Primary()
	command := doc("replSetStepDown", 10, "secondaryCatchUpPeriodSecs", 1)
	if len(s.Members) == 1 {
		command = doc("replSetStepDown", 1, "force", true)
	}
	s.await("let its primary step down", func(ctx context.Context) error { // another member must have caught up
		_, err := old.runCommand(ctx, s.user, command)
		return err
	})
	s.Primary()
	return old
}

// SmallOplog returns the settings of a set whose oplog can be rolled quickly: the oplog is
// small, and the server takes a checkpoint each second, because it truncates the oplog only
// up to a checkpoint.
func SmallOplog() map[string]string {
	return map[string]string{"oplogSize": "16", "syncdelay": "1"}
}

// RollOplog writes to a separate database until the set's oplog no longer contains earlier
// entries. It takes long without SmallOplog.
func (s *MongoSet) RollOplog() {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.tb.Context()), waitTimeout)
	defer cancel()
	client, err := openMongo(s.URL)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer closeMongo(client)
	newest, err := edgeOfOplog(ctx, client, -1)
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := fillOplog(ctx, client, newest); err != nil {
		s.tb.Fatalf("rolling the oplog: %v", err)
	}
}

// fillOplog writes until the oldest oplog entry is newer than past.
func fillOplog(ctx context.Context, client *mongo.Client, past bson.Timestamp) error {
	const size, maxSize = 1 << 20, 8 << 20
	filler := client.Database("filler")
	// The collection is capped, so that only the oplog grows.
	err := filler.RunCommand(ctx, doc("create", "filler", "capped", true, "size", maxSize)).Err()
	const namespaceExists = 48 // NamespaceExists
	var command mongo.CommandError
	if err != nil && (!errors.As(err, &command) || command.Code != namespaceExists) {
		return err
	}

	text := bytes.Repeat([]byte("x"), size)
	for {
		for range maxSize / size {
			if _, err := filler.Collection("filler").InsertOne(ctx, doc("text", text)); err != nil {
				return err
			}
		}
		oldest, err := edgeOfOplog(ctx, client, 1)
		if err != nil {
			return err
		}
		if oldest.After(past) {
			return nil
		}
		select { // the server truncates after its next checkpoint: more rows would only take its time
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// edgeOfOplog returns the time of the oldest (order 1) or the newest (-1) entry.
func edgeOfOplog(ctx context.Context, client *mongo.Client, order int) (bson.Timestamp, error) {
	var entry struct{ TS bson.Timestamp }
	err := client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{},
		options.FindOne().SetSort(doc("$natural", order)).SetProjection(doc("ts", 1))).Decode(&entry)
	return entry.TS, err
}
