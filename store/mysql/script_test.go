package mysql

import (
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

const scriptTable = `CREATE TABLE outbox (id VARCHAR(40) PRIMARY KEY, type VARCHAR(20), message_group VARCHAR(40), payload TEXT,
	status VARCHAR(80), retry_count INT NOT NULL DEFAULT 0, created_at DATETIME, processed_at DATETIME, error_message TEXT) DEFAULT CHARSET=utf8mb4`

func leading(t *testing.T, f servers.Flavour) (*Store, store.Epoch, string) {
	t.Helper()
	url := f.Database(t)
	servers.ExecMySQL(t, url, scriptTable)
	s, err := New(Config{URL: url, Name: "scripts", Outboxes: []store.Outbox{{Name: "box", Table: "outbox", Kind: "EVENT", Layout: store.FlowCatalyst()}}})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(s.Close)
	if err := s.Install(t.Context()); err != nil {
		t.Fatal(err)
	}

	epoch, err := s.AcquireLeadership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s, epoch, url
}

// TestScript checks that a script that must not reach its COMMIT changes nothing and
// leaves no locks, and that no value is executed as SQL.
func TestScript(t *testing.T) {
	const odd = "it's \\' \x00 \"?\" ; DELETE FROM outbox; -- ü"
	for _, f := range servers.Flavours() {
		s, epoch, url := leading(t, f)
		db := servers.OpenMySQL(t, url)
		for _, tc := range []struct {
			name  string
			epoch store.Epoch
			found int
			more  string
			want  bool
		}{
			{"all holds", epoch, 2, "", true},
			{"nothing is counted", epoch, 0, "", true},
			{"another epoch", epoch + 1, 2, "", false},
			{"fewer rows", epoch, 3, "", false},
			{"a later statement fails", epoch, 2, "SELECT missing FROM outbox", false},
		} {
			t.Run(string(f)+"/"+tc.name, func(t *testing.T) {
				servers.ExecMySQL(t, url, "DELETE FROM outbox", "INSERT INTO outbox (id, status) VALUES ('a', 'old'), ('b', 'old'), ('c', 'old')")
				err := s.claims.do(t.Context(), func(ctx context.Context, c *conn) error {
					script := newScript()
					script.write(tc.found, func() string {
						return "UPDATE outbox SET status = " + script.arg(odd) + " WHERE id IN " + script.list("?", []any{"a", "b"})
					})
					script.fence(s, tc.epoch)
					if tc.more != "" {
						script.query(tc.more, func(*sql.Rows) error { return nil })
					}
					done, err := c.run(ctx, script)
					if done != tc.want {
						t.Errorf("done: got %v, want %v", done, tc.want)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}

				var changed, rows int
				if err := db.QueryRowContext(t.Context(), "SELECT COALESCE(SUM(status = ?), 0), COUNT(*) FROM outbox", odd).Scan(&changed, &rows); err != nil {
					t.Fatal(err)
				}

				if want := map[bool]int{true: 2}[tc.want]; changed != want || rows != 3 {
					t.Errorf("changed %d of %d rows, want %d", changed, rows, want)
				}
				servers.ExecMySQL(t, url, "SELECT 1 FROM outbox FOR UPDATE NOWAIT", "SELECT 1 FROM sluicebox_leader FOR UPDATE NOWAIT")
			})
		}
	}
}

// counted counts the packets that are sent.
type counted struct {
	net.Conn
	sent atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(p)
}

// TestClaimsAndOutcomesTakeOneRoundTrip checks the most frequent calls of a relay.
func TestClaimsAndOutcomesTakeOneRoundTrip(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			s, epoch, url := leading(t, f)
			fewest := func(l *link, call func() error) int64 {
				least := int64(100)
				var on *counted
				for range 5 { // a keep-alive ping may come in between
					servers.ExecMySQL(t, url, "REPLACE INTO outbox (id, payload, status) VALUES ('a', '{}', 'PENDING')")
					before := int64(0)
					if on != nil {
						before = on.sent.Load()
					}

					if err := call(); err != nil {
						t.Fatal(err)
					}
					if on != nil {
						least = min(least, on.sent.Load()-before)
					}

					if !l.TryDo(func() {
						if on == nil {
							on = &counted{Conn: l.conn.wire.Conn}
							l.conn.wire.Conn = on
						}
					}) {
						t.Fatal("the session is in use")
					}
				}

				return least
			}

			ref := store.Ref{Outbox: "box", ID: "a"}
			if n := fewest(s.claims.link, func() error {
				answers, err := s.Claim(t.Context(), epoch, time.Now(), []store.ClaimRow{{Ref: ref}})
				if err == nil && answers[0].Result != store.Claimed {
					t.Errorf("claim: got %+v", answers)
				}
				return err
			}); n != 1 {
				t.Errorf("claim: got %d packets, want 1", n)
			}

			if n := fewest(s.outcomes[0].link, func() error {
				results, err := s.Settle(t.Context(), epoch, []store.Outcome{{Ref: ref, Status: store.Completed, At: time.Now()}})
				if err == nil && results[0] != store.Written {
					t.Errorf("outcome: got %+v", results)
				}
				return err
			}); n != 1 {
				t.Errorf("outcome: got %d packets, want 1", n)
			}
		})
	}
}

// TestPingTakesOneRoundTrip checks that a ping is one statement.
func TestPingTakesOneRoundTrip(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			s, _, _ := leading(t, f)
			taken, err := s.Lock(rigs.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Release()
			w := taken.(*lock).conn.wire
			wire := &counted{Conn: w.Conn}
			w.Conn = wire

			for want := range int64(2) {
				before := wire.sent.Load()
				for range 4 {
					rigs.WantRequestCount(t, "a ping", taken, want)
				}
				if n := wire.sent.Load() - before; n != 4 {
					t.Errorf("4 pings with %d requests: got %d commands", want, n)
				}
				if want > 0 {
					break
				}
				if err := s.RequestSavepoint(rigs.Context(t), "here", false); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
