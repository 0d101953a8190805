package postgres

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestPingStatements: a ping is one statement, whether there are requests, none, or no
// table of them; and it causes at most one error in the server's log.
func TestPingStatements(t *testing.T) {
	url := servers.Database(t, servers.Versions()[0])
	st, err := New(Config{URL: url, Name: "rig", Outboxes: []store.Outbox{rigs.EventsOutbox()}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	taken, err := st.Lock(rigs.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	var trace bytes.Buffer
	taken.(*lock).conn.PgConn().Frontend().Trace(&trace, pgproto3.TracerOptions{})
	expect := func(what string, wishes int64, failures int) {
		t.Helper()
		trace.Reset()
		for range 4 {
			rigs.WantRequestCount(t, what, taken, wishes)
		}
		text := trace.String()
		if n, errs := strings.Count(text, "\tQuery\t"), strings.Count(text, "\tErrorResponse\t"); n != 4 || errs != failures || strings.Count(text, "F\t") != 4 {
			t.Errorf("%s: %d statements with %d errors:\n%s", what, n, errs, text)
		}
	}
	expect("no table", 0, 1)
	if err := st.Install(rigs.Context(t)); err != nil {
		t.Fatal(err)
	}
	expect("no request", 0, 0)
	if err := st.RequestSavepoint(rigs.Context(t), "here", false); err != nil {
		t.Fatal(err)
	}
	expect("a request", 1, 0)
}
