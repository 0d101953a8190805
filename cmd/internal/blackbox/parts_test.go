package blackbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The relay refuses tables whose log is misleading, by name. For example, rows of a table that
// is partitioned by a column that the relay updates would arrive twice. Rows of child tables
// would arrive a minute late, behind later ones. With mode auto the relay polls instead: each
// row arrives once, in order within its group.
func TestTablesWithMisleadingLogs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ddl, problem string }{
		"partitioned by status": {`ALTER TABLE outbox_events RENAME TO whole;
			CREATE TABLE outbox_events (LIKE whole INCLUDING DEFAULTS, PRIMARY KEY (id, status)) PARTITION BY LIST (status);
			CREATE TABLE child PARTITION OF outbox_events FOR VALUES IN ('PENDING');
			CREATE TABLE others PARTITION OF outbox_events DEFAULT`, `LIST (status), and the relay writes column "status"`},
		"child tables": {"CREATE TABLE child () INHERITS (outbox_events)", `tables inherit from "public"."outbox_events" (child)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			aPostgres(t, "checkpoint: {sweep-interval: 1h}\n", func(s *scene) {
				s.exec(c.ddl)
				expectEnd(s.t, s.config, 78, c.problem, "or poll")
				d, text, code := doctor(s.t, s.config)
				found := slices.ContainsFunc(d.Findings, func(f finding) bool { return f.Grade == "fault" && strings.Contains(f.Text, c.problem) })
				if code != 78 || !found {
					s.t.Errorf("doctor: exit code %d, want 78; output\n%s\nwant %s", code, text, c.problem)
				}
				s.config = strings.Replace(s.config, "mode: stream", "mode: auto, poll-interval: 20ms", 1)
				r := start(s.t, s.config)
				r.waitFor("polling")
				const rows = 400
				for i := range rows {
					table := []string{"child", "outbox_events"}[i%2]
					if _, err := s.conn.exec(fmt.Sprintf("INSERT INTO %s (id, type, message_group, payload, status, created_at) VALUES ('%012d', 'EVENT', '%d', '{\"id\": \"%d-%012d\"}', 'PENDING', clock_timestamp())", table, i, i/2%2, i/2%2, i)); err != nil {
						s.t.Fatal(err)
					}
				}
				arrive(s.t, s.to, rows)
				settle(s.t, s.conn)
				last := map[string]string{}
				for _, row := range s.to.Accepted() {
					group, id, _ := strings.Cut(row.ID, "-")
					if id <= last[group] {
						s.t.Errorf("row %s arrived behind %s", id, last[group])
					}
					last[group] = id
				}
				if n := s.to.Counts().Duplicates; n > 0 {
					s.t.Errorf("%d rows arrived more than once, want 0", n)
				}
				expectStop(s.t, r)
			})
		})
	}
}
