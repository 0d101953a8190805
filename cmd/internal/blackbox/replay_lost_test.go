package blackbox

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// nextSecond waits for the next second of the server's clock, because MySQL's now() has no
// fraction.
func (s *scene) nextSecond() {
	s.t.Helper()
	const second = "SELECT unix_timestamp(now())"
	was := count(s.t, s.conn, second)
	within(s.t, testTimeout, func() string {
		if count(s.t, s.conn, second) == was {
			return "the server's clock stands still"
		}
		return ""
	})
}

// seedIDs returns the ids of all rows of the FlowCatalyst tables.
func (s *scene) seedIDs() []string {
	s.t.Helper()
	ids, err := s.conn.texts("SELECT id FROM outbox_events UNION ALL SELECT id FROM outbox_dispatch_jobs")
	if err != nil {
		s.t.Fatal(err)
	}
	return ids
}

// removeSome deletes delivered rows, the latest events.
func (s *scene) removeSome() (gone []string) {
	s.t.Helper()
	gone, err := s.conn.texts("SELECT id FROM outbox_events ORDER BY id DESC LIMIT 5")
	if err == nil {
		_, err = s.conn.exec("DELETE FROM outbox_events WHERE id IN (" + quoted(gone...) + ")")
	}
	if err != nil || len(gone) != 5 {
		s.t.Fatalf("%q were to be deleted, %v", gone, err)
	}
	return gone
}

// expectTable expects that a replay read the table for a reason, and that a dry run counted
// the same.
func expectTable(t *testing.T, job, dry replayed, rows int, why string) {
	t.Helper()
	for _, j := range []replayed{job, dry} {
		if j.code != 0 || j.State != "done" || j.Source != "table" || !strings.HasPrefix(j.Reason, "from the table, because "+why) || j.Refused+j.Skipped > 0 {
			t.Errorf("the replay is %+v, want %q", j, why)
		}
		if !strings.Contains(j.stderr, "replay "+j.ID+": from the table, because "+why) || !strings.Contains(j.Reason, "deleted rows are not sent") {
			t.Errorf("the replay does not say that it reads the table:\n%s\n%s", j.stderr, j.Reason)
		}
	}
	if job.Sent != rows || job.Remaining != 0 || dry.Sent != 0 || dry.Remaining != rows {
		t.Errorf("%d rows were counted and %d were sent, want %d", dry.Remaining, job.Sent, rows)
	}
}

// expectRefused expects that a replay was refused for a reason and sent nothing.
func expectRefused(t *testing.T, job replayed, why ...string) {
	t.Helper()
	if job.code != 78 || job.State != "refused" || job.Rows+job.Sent > 0 || !strings.Contains(job.stderr, "replay "+job.ID+": refused: "+job.Reason) {
		t.Errorf("the replay is %+v, want it refused", job)
	}
	for _, part := range why {
		if !strings.Contains(job.Reason, part) {
			t.Errorf("the replay was refused, as %s; want %q", job.Reason, part)
		}
	}
}

// replayPurged replays from a checkpoint whose binlog is purged. before is the number of rows
// delivered before the checkpoint. The replay reads the table and reports that. A replay by
// time reads the rest of the binlog, although there is an earlier checkpoint.
func (s *scene) replayPurged(r *relay, before int) {
	s.t.Helper()
	s.nextSecond()
	left, was := time.Now().UTC().Format(time.RFC3339Nano), s.rows()
	s.load(30)
	s.expectSet()
	var first []string
	for _, got := range s.to.Accepted()[:before] {
		first = append(first, got.ID)
	}
	gone := s.removeSome()
	jobs := r.replays([]string{"--from=before"}, []string{"--from=before", "--dry-run"}, []string{"--from=before", "--source=log"})
	expectTable(s.t, jobs[0], jobs[1], was+30-before-len(gone), "log lost: ")
	ids, twice := again(s.to.Accepted(), jobs[0].ID)
	want := slices.DeleteFunc(s.seedIDs(), func(id string) bool { return slices.Contains(first, id) })
	slices.Sort(ids)
	slices.Sort(want)
	if twice > 0 || !slices.Equal(ids, want) {
		s.t.Errorf("%d rows arrived, %d of them twice, want %d", len(ids), twice, len(want))
	}
	expectRefused(s.t, jobs[2], "cannot read the log as requested, because log lost: ")
	s.t.Log(jobs[2].Reason)
	s.backdate()
	job := r.replay("--since="+left, "--dry-run")
	if job.code != 0 || job.Source != "log" || job.Remaining != 30 {
		s.t.Errorf("replay of the remaining log: %+v", job)
	}
}

// replayAnother replays from a checkpoint of a different binlog, which is refused. A replay by
// time reads the table, although there is an earlier checkpoint.
func (s *scene) replayAnother(r *relay, _ int) {
	s.t.Helper()
	s.backdate()
	jobs := r.replays([]string{"--from=before"}, []string{"--from=before", "--dry-run"}, []string{"--since=1h"}, []string{"--since=1h", "--dry-run"})
	for _, job := range jobs[:2] {
		expectRefused(s.t, job, "position belongs to another log: ", "use --source table to read the table")
	}
	s.t.Log(jobs[0].Reason)
	expectTable(s.t, jobs[2], jobs[3], s.rows(), "log lost: ")
	s.t.Log(jobs[2].Reason)
	if ids, twice := again(s.to.Accepted(), jobs[2].ID); len(ids) != s.rows() || twice > 0 {
		s.t.Errorf("%d rows arrived, %d of them twice", len(ids), twice)
	}
}

// backdate moves the checkpoint's time far into the past.
func (s *scene) backdate() {
	s.t.Helper()
	if n, err := s.conn.exec("UPDATE sluicebox.record SET body = json_set(body, '$.at', '2020-01-01T00:00:00Z') WHERE kind = 'savepoint' AND record_key = 'before'"); err != nil || n != 1 {
		s.t.Fatalf("%d checkpoints, want 1, %v", n, err)
	}
}

// replayRolled is replayPurged for a rolled oplog. It also copies the data into another set,
// which then has the checkpoint without its oplog.
func (s *mongoScene) replayRolled(r *relay, before int) {
	s.t.Helper()
	ctx := context.Background()
	was := s.rows()
	first := s.to.Accepted()[:before]
	var gone []struct {
		ID string `bson:"_id"`
	}
	cursor, err := s.db.Collection("outbox_events").Find(ctx, bson.M{})
	if err == nil {
		err = cursor.All(ctx, &gone)
	}
	s.must(err)
	gone = gone[len(gone)-5:]
	for _, d := range gone {
		_, err := s.db.Collection("outbox_events").DeleteOne(ctx, bson.M{"_id": d.ID})
		s.must(err)
	}
	jobs := r.replays([]string{"--from=before"}, []string{"--from=before", "--dry-run"}, []string{"--from=before", "--source=log"})
	expectTable(s.t, jobs[0], jobs[1], was-before-len(gone), "log lost: ")
	expectRefused(s.t, jobs[2], "cannot read the log as requested, because log lost: ")
	s.t.Log(jobs[2].Reason)
	ids, twice := again(s.to.Accepted(), jobs[0].ID)
	if len(ids) != jobs[0].Sent || twice > 0 {
		s.t.Errorf("%d documents arrived, %d of them twice; %d were sent", len(ids), twice, jobs[0].Sent)
	}
	for _, got := range first {
		if slices.Contains(ids, got.ID) {
			s.t.Errorf("document %s of before the checkpoint was sent", got.ID)
		}
	}
	s.elsewhere("before")
}

// elsewhere replays from a checkpoint that was copied into another set.
func (s *mongoScene) elsewhere(checkpoint string) {
	s.t.Helper()
	there := mongoSceneIn(s.t, servers.Mongo(s.t), "")
	r := there.run()
	there.load(10)
	there.expectOnce()
	var records []struct {
		ID      struct{ Relay, Kind, Key string } `bson:"_id"`
		Body    string
		Version int64
	}
	s.documents("sluicebox_record", &records)
	for _, d := range records {
		if d.ID.Key != checkpoint {
			continue
		}
		d.ID.Relay = nameFor(there.database)
		_, err := there.db.Collection("sluicebox_record").InsertOne(context.Background(), d)
		s.must(err)
	}
	jobs := r.replays([]string{"--from=" + checkpoint}, []string{"--from=" + checkpoint, "--source=table"})
	expectRefused(s.t, jobs[0], "position belongs to another log: ", "use --source table to read the table")
	s.t.Log(jobs[0].Reason)
	if job := jobs[1]; job.code != 0 || job.Source != "table" || job.Sent != 10 {
		s.t.Errorf("the replay is %+v", job)
	}
	expectStop(s.t, r)
}

// elsewhere replays from checkpoints that were copied to another server, like by a dump. One of
// them retains its log, which the other server does not have; the other does not.
func (s *scene) elsewhere(h host, from string) {
	s.t.Helper()
	there := newScene(s.t, h, "")
	if out, why, code := command(s.t, nil, "init", "-c", configFile(s.t, there.config)); code != 0 {
		s.t.Fatalf("init: exit code %d, want 0: %s%s", code, out, why)
	}
	var made string
	err := s.conn.row("SELECT body::text FROM sluicebox.record WHERE kind = 'savepoint' AND key = $1", from).Scan(&made)
	if err != nil {
		s.t.Fatal(err)
	}
	for name, state := range map[string]string{"plain": "made", "kept": "retained"} {
		_, err := there.conn.exec(`INSERT INTO sluicebox.record (name, kind, key, body, version) VALUES
			($1, 'savepoint-spec', $2, json_build_object('name', $2::text, 'retainLog', $3::boolean), 1),
			($1, 'savepoint', $2, jsonb_set($4::jsonb, '{state}', to_jsonb($5::text))::json, 1)`,
			nameFor(there.database), name, state == "retained", made, state)
		if err != nil {
			s.t.Fatal(err)
		}
	}
	r := there.run()
	r.waitFor("named checkpoint lost its retained log")
	there.number(1, 20, "i % 5")
	there.expectNumbered(20)
	jobs := r.replays([]string{"--from=plain"}, []string{"--from=kept"}, []string{"--from=kept", "--dry-run"}, []string{"--since=1h"}, []string{"--since=1h", "--dry-run"})
	expectRefused(s.t, jobs[0], "position belongs to another log: ", "use --source table to read the table")
	expectTable(s.t, jobs[1], jobs[2], 20, "log lost: it was retained for checkpoint kept: replication slot dropped externally")
	expectTable(s.t, jobs[3], jobs[4], 20, "no log is retained from that time (PostgreSQL: `checkpoint create --keep-log`); ")
	for _, job := range jobs {
		s.t.Log(job.Reason)
	}
	checkReplay(s.t, there.to.Accepted(), jobs[1].ID, numbers(1, 20))
	expectStop(s.t, r)
}

// otherPostgres is a server of another version, or of the same if there is no other.
func otherPostgres(version int) host {
	for _, other := range servers.Chosen(servers.Versions()) {
		if other != version {
			return postgresHost(other)
		}
	}
	return postgresHost(version)
}
