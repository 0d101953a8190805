package postgres_test

import (
	"errors"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestRetainedLimit: the server's limit is returned in bytes, whatever its unit and
// whichever role queries it, also after the previous session was lost.
func TestRetainedLimit(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		srv := servers.Start(t, version, nil)
		d := privateDatabase(t, srv)
		d.role = d.newRole(t, "app", "REPLICATION")
		script(publish, "GRANT SELECT ON outbox_events TO "+d.role)(t, d)
		src := newSource(t, d.config())
		defer src.Close()
		capturetest.OpenWithoutCheckpoint(t, src, d.tables())
		for _, c := range []struct {
			setting string
			want    int64
		}{
			{"", 0}, // the server's default is unlimited
			{"64MB", 64 << 20},
			{"100", 100 << 20},
			{"1500MB", 1500 << 20},
			{"3GB", 3 << 30},
			{"2TB", 2 << 40},
			{"0", 1},
			{"-1", 0},
		} {
			if c.setting != "" {
				srv.Restart(map[string]string{"max_slot_wal_keep_size": c.setting})
			}
			if kept, err := src.Retained(t.Context()); err != nil || kept.Limit != c.want {
				t.Errorf("max_slot_wal_keep_size %q: %+v, %v, want the limit %d", c.setting, kept, err, c.want)
			}
		}
	})
}

func TestRetainedWithoutSlot(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		src := newSource(t, d.config())
		defer src.Close()
		capturetest.OpenWithoutCheckpoint(t, src, d.tables())
		script(dropSlot)(t, d)
		var lost *capture.LostError
		if kept, err := src.Retained(t.Context()); !errors.As(err, &lost) {
			t.Errorf("got %+v, error %v, want a *capture.LostError", kept, err)
		}
	})
}
