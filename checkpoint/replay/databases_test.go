package replay_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	capturemongo "github.com/sluicebox/sluicebox/capture/mongo"
	capturemysql "github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/checkpoint/replay"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
	mysqlstore "github.com/sluicebox/sluicebox/store/mysql"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/ddl"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mysql returns a database of its own on a shared server.
func mysql(t *testing.T, f servers.Flavour) testDB {
	url, boxes := f.Database(t), []store.Outbox{eventsBox()}
	open := func() (*capturemysql.Source, error) {
		return capturemysql.New(capturemysql.Config{URL: url, Name: "r", Outboxes: boxes})
	}
	servers.ExecMySQL(t, url, ddl.MySQL().FlowCatalyst("outbox_events"))
	return testDB{
		insert: func(t *testing.T, group string, ids ...string) { servers.ExecMySQL(t, url, insert(group, ids...)) },
		remove: func(t *testing.T, id string) {
			servers.ExecMySQL(t, url, "DELETE FROM outbox_events WHERE id = '"+id+"'")
		},
		store: func(t *testing.T) storetest.Store {
			st, err := mysqlstore.New(mysqlstore.Config{URL: url, Name: "r", Outboxes: boxes})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			return st
		},
		source:    func() (source, error) { return open() },
		retention: func() (replay.RetentionChecker, error) { return open() },
	}
}

// mongo returns a database of its own on a shared server.
func mongo(t *testing.T) testDB {
	url, boxes := servers.Mongo(t), []store.Outbox{eventsBox()}
	open := func() (*capturemongo.Source, error) {
		return capturemongo.New(capturemongo.Config{URL: url, Name: "r", Outboxes: boxes})
	}

	events := servers.OpenMongo(t, url).Collection("outbox_events")
	unique := driver.IndexModel{Keys: bson.D{{Key: "id", Value: 1}}, Options: options.Index().SetUnique(true)}
	if _, err := events.Indexes().CreateOne(t.Context(), unique); err != nil {
		t.Fatal(err)
	}
	return testDB{
		insert: func(t *testing.T, group string, ids ...string) {
			var docs []any
			for _, id := range ids {
				docs = append(docs, bson.D{
					{Key: "id", Value: id}, {Key: "message_group", Value: group}, {Key: "payload", Value: id},
					{Key: "status", Value: "PENDING"}, {Key: "retry_count", Value: 0}, {Key: "created_at", Value: time.Now()},
				})
			}
			if _, err := events.InsertMany(t.Context(), docs); err != nil {
				t.Fatal(err)
			}
		},
		remove: func(t *testing.T, id string) {
			if _, err := events.DeleteOne(t.Context(), bson.D{{Key: "id", Value: id}}); err != nil {
				t.Fatal(err)
			}
		},
		store: func(t *testing.T) storetest.Store {
			st, err := mongostore.New(mongostore.Config{URL: url, Name: "r", Outboxes: boxes})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(st.Close)
			return st
		},
		source:    func() (source, error) { return open() },
		retention: func() (replay.RetentionChecker, error) { return open() },
	}
}

// purgedServer is a server whose log is gone once the test says so.
type purgedServer struct {
	replay.RetentionChecker
	gone *atomic.Bool
}

func (p purgedServer) LostReasons(ctx context.Context, of []store.Checkpoint) ([]string, error) {
	why, err := p.RetentionChecker.LostReasons(ctx, of)
	for i := range why {
		if why[i] == "" && p.gone.Load() {
			why[i] = "it was purged"
		}
	}
	return why, err
}

// TestReplayFromServerRetention: if a server keeps its log for a fixed time, a replay
// reads it from a new checkpoint or from a time.
func TestReplayFromServerRetention(t *testing.T) {
	hosts := map[string]func(*testing.T) testDB{"mongo": mongo}
	for _, f := range servers.Chosen(servers.Flavours()) {
		hosts[string(f)] = func(t *testing.T) testDB { return mysql(t, f) }
	}

	for name, open := range hosts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, to := open(t), newReceiver()
			h.insert(t, "a", "first")
			var gone atomic.Bool
			l := startRelay(t, h, to, func(d *replay.Controller) {
				d.SetRetentionInterval(time.Millisecond)
				d.Log.OpenRetention = func() (replay.RetentionChecker, error) {
					server, err := h.retention()
					return purgedServer{server, &gone}, err
				}
			})
			l.createCheckpoint("plain", false)
			n := l.createCheckpoint("here", true)
			if n.State != store.SavepointMade || !strings.Contains(n.Reason, "by its own settings") || n.Position == "" {
				t.Errorf("got checkpoint %+v", n)
			}
			for i := 0; i < 60; i += 20 {
				h.insert(t, "a", ids("a", i, i+20)...)
				h.insert(t, "b", ids("b", i, i+20)...)
			}
			to.waitForLive(t, 121)
			eventually(t, func() string { return l.wantOpen(0) })
			h.remove(t, "a-007")
			l.replay("job", replay.Spec{From: "here"})
			j := l.waitForState("job", store.JobDone)
			if j.Source != "log" || j.Sent != 120 || j.Total != 120 {
				t.Errorf("got job %+v", j)
			}
			for _, g := range []string{"a", "b"} {
				if got := to.of(g, true); !slices.Equal(got, ids(g, 0, 60)) {
					t.Errorf("group %s: got %v", g, got)
				}
			}
			l.replay("table", replay.Spec{From: "here", Read: replay.SourceTable, DryRun: true})
			if j := l.waitForState("table", store.JobDone); j.Total < 119 || j.Total > 120 { // the first may have the same time
				t.Errorf("got job %+v", j)
			}
			l.replay("since", replay.Spec{Since: time.Now().Add(-100 * 24 * time.Hour), Read: replay.SourceLog})
			var said store.Job
			eventually(t, func() string {
				if said = l.job("since"); !said.State.Ended() {
					return fmt.Sprintf("the end of %+v", said)
				}
				return ""
			})
			if said.State != store.JobRefused || !strings.Contains(said.Reason, "begins at") {
				t.Errorf("got job %+v", said)
			}
			if n := l.findCheckpoint("here"); n.State != store.SavepointMade {
				t.Errorf("got checkpoint %+v", n)
			}
			gone.Store(true)
			eventually(t, func() string {
				if n := l.findCheckpoint("here"); n.State != store.SavepointLogLost || n.Reason != "it was purged" {
					return fmt.Sprintf("that the log is gone: %+v", n)
				}
				return ""
			})
			if n := l.findCheckpoint("plain"); n.State != store.SavepointMade || n.Reason != "" {
				t.Errorf("want no retained log for %+v", n)
			}
			l.replay("still", replay.Spec{From: "here", DryRun: true}) // reads the log that the server has
			if j := l.waitForState("still", store.JobDone); j.Source != "log" || j.Total != 120 {
				t.Errorf("got job %+v", j)
			}
		})
	}
}
