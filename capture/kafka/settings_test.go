package kafka_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// testRefusedRecords: Kafka refuses several records of a feeder one after the other. Its session ends,
// and its status has no trace of them.
func testRefusedRecords(t *testing.T, c *servers.KafkaCluster) {
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), 4)
	r.stop()
	f := newZombie(t, r)
	close(f.frozen.saves)
	r.set(t, "max.message.bytes", "2000")
	err := untilRefused(t, r, f)
	if err == nil || !strings.Contains(err.Error(), "MESSAGE_TOO_LARGE") {
		t.Errorf("the session ended with %v", err)
	}
	if now := f.Status(); now.Buffered != 0 || now.Bytes != 0 {
		t.Errorf("the session ended, and the status is %+v", now)
	}
}

// untilRefused writes rows until the session ends: the broker applies a property of the topic a moment
// after it accepted it, and takes rows until then.
func untilRefused(t *testing.T, r *rig, f *zombie) error {
	t.Helper()
	for n, end := 0, time.After(time.Minute); ; n++ {
		rows := make([]capturetest.Row, 20)
		for i := range rows {
			rows[i] = capturetest.Row{ID: fmt.Sprint(n, " ", i), Group: store.GroupOf(fmt.Sprint("g", i)), Payload: strings.Repeat("x", 5000)}
		}
		r.Begin(t, rows...)(true)
		select {
		case err := <-f.ended:
			return err
		case <-time.After(time.Second):
		case <-end:
			t.Fatal("the session goes on")
		}
	}
}

// testSettings: a feeder and a shard refuse a topic whose settings lose records, and name the setting
// and the command that changes it.
func testSettings(t *testing.T, c *servers.KafkaCluster) {
	r := newRig(t, c, servers.Database(t, servers.Versions()[0]), 1)
	r.stop()
	src := r.source(t, r.config(0))
	t.Cleanup(src.Close)
	found, err := src.Diagnose(t.Context())
	if err != nil || len(found) != 2 || found[0].Grade != store.GradeOK || found[1].Grade != store.GradeAdvice || !strings.Contains(found[1].Text, "1 replica") {
		t.Errorf("a good topic of one replica has the findings %+v, %v", found, err)
	}
	r.set(t, "unclean.leader.election.enable", "true")
	r.set(t, "max.message.bytes", "2000")
	faults := func() int {
		found, err = r.feeder.Load().Diagnose(t.Context())
		return store.CountFaults(found)
	}
	waitFor(t, "the broker applies the settings", func() bool { return faults() == 2 })
	var setup *store.SetupError
	err = r.feeder.Load().Run(t.Context(), r.tables, r.marker)
	for _, want := range []string{
		"topic " + r.name, "unclean.leader.election.enable=true", "--add-config unclean.leader.election.enable=false",
		"max.message.bytes=2000", "--add-config max.message.bytes=1901024",
	} {
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), want) {
			t.Errorf("the feeder ended with %v, want %s", err, want)
		}
	}
	_, err = src.Open(t.Context(), store.Checkpoint{}, &capturetest.Tables{Viewer: r.tables})
	if !errors.As(err, &setup) || !strings.Contains(err.Error(), "unclean.leader.election.enable=true") || strings.Contains(err.Error(), "max.message.bytes") {
		t.Errorf("the shard's source ended with %v", err)
	}
}

// set sets a property of the topic.
func (r *rig) set(t *testing.T, name, value string) {
	t.Helper()
	resp, err := r.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, r.name)
	if err != nil || resp[0].Err != nil {
		t.Fatal(err, resp)
	}
}
