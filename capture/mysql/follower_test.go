package mysql_test

import (
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/store"
)

// follow opens a source and follows it until the test ends.
func follow(t *testing.T, d *database, cfg mysql.Config, at store.Checkpoint) (*capturetest.Follower, *mysql.Source, capture.OpenResult) {
	t.Helper()
	src := newSource(t, cfg)
	t.Cleanup(src.Close)
	o, err := src.Open(t.Context(), at, d.tables())
	if err != nil {
		t.Fatal(err)
	}
	if o.View != nil {
		o.View.Close()
	}
	return capturetest.FollowFrom(t, src, o.From), src, o
}

func insert(id string) string {
	return fmt.Sprintf("INSERT INTO outbox_events (id, message_group, payload) VALUES ('%s', 'g', 'payload of %[1]s')", id)
}

// drain waits for the end of a canceled run.
func drain(done <-chan error) {
	err := <-done
	_ = err
}
