package mysql_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestWatch reads the changes of a table, however much of a row the binlog has, with an account
// that may only read.
func TestWatch(t *testing.T) {
	eachFlavour(t, func(t *testing.T, f servers.Flavour) {
		for _, image := range []string{"FULL", "NOBLOB", "MINIMAL"} {
			t.Run(image, func(t *testing.T) {
				d := newDatabase(t, f, f.Database(t))
				cfg := d.config()
				role := "w" + d.name
				cfg.URL = d.newRole(t, role, "GRANT SELECT ON outbox_events TO '"+role+"'@'%'", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '"+role+"'@'%'")
				cfg.StreamURL = ""
				commit := func(statements ...string) {
					t.Helper()
					conn, err := d.db.Conn(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = conn.Close() }()
					for _, statement := range append(append([]string{"SET SESSION binlog_row_image = " + image, "BEGIN"}, statements...), "COMMIT") {
						if _, err := conn.ExecContext(t.Context(), statement); err != nil {
							t.Fatalf("%s: %v", statement, err)
						}
					}
				}
				capturetest.RunWatch(t, newSource(t, cfg), f == servers.MariaDB, capturetest.SQLWatch(commit, image == "MINIMAL"))
			})
		}
	})
}
