package postgres_test

import (
	"errors"
	"testing"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestBehindPooler: a pooler in place of the database is named, for the stream and for
// the other sessions.
func TestBehindPooler(t *testing.T) {
	aVersion(t, func(t *testing.T, version int) {
		d := newDatabase(t, servers.Database(t, version))
		// Every parameter that the stream sends, except those known to pgbouncer.
		ignored := []string{
			"bytea_output", "intervalstyle", "extra_float_digits",
			"wal_sender_timeout", "idle_in_transaction_session_timeout",
		}
		for _, mode := range []string{"session", "transaction"} {
			refuses := servers.Pooler(t, d.url, mode)
			cfg := d.config()
			cfg.StreamURL = refuses
			expectPooler(t, openErr(t, d, cfg, store.Checkpoint{}), "unsupported startup parameter")
			cfg.StreamURL = servers.Pooler(t, d.url, mode, ignored...)
			expectPooler(t, openErr(t, d, cfg, store.Checkpoint{}), "unsupported startup parameter: replication")
			cfg.StreamURL = servers.Pooler(t, d.url, mode, append(ignored, "replication")...)
			expectPooler(t, openErr(t, d, cfg, store.Checkpoint{}), "ignores the parameter")
			cfg.URL, cfg.StreamURL = refuses+"&lock_timeout=1s", d.url
			err := openErr(t, d, cfg, store.Checkpoint{})
			if !errors.As(err, new(*store.SetupError)) || errors.As(err, new(*capture.NoStreamError)) {
				t.Errorf("unexpected *capture.NoStreamError: %v", err)
			}
			expectText(t, err, "connection pooler", "unsupported startup parameter: lock_timeout", "URL of the database itself")
		}
	})
}

func expectPooler(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.As(err, new(*capture.NoStreamError)) {
		t.Errorf("got %v, want a *capture.NoStreamError", err)
	}
	expectText(t, err, append(parts, "cannot open a replication session", "connection pooler", "URL of the database itself")...)
}
