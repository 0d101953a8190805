package postgres

import (
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestKeepalives: every session asks the server to detect a lost host over TCP, and
// accepts the settings over a Unix socket too.
func TestKeepalives(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts servers")
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("/tmp", "sb") // a socket path must be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o777); err != nil { // the server may run as another user
				t.Fatal(err)
			}
			srv := servers.Start(t, version, map[string]string{"unix_socket_directories": dir})
			at, err := url.Parse(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			socket := "postgres://postgres@/postgres?sslmode=disable&host=" + url.QueryEscape(dir) + "&port=" + at.Port()
			for raw, want := range map[string]string{srv.URL: "5 3 3 true", socket: "0 0 0 false"} {
				for _, set := range []map[string]string{rowSettings("1s"), controlSettings(), operatorSettings(), spillSettings(), viewSettings(), lockSettings()} {
					cfg, err := sessionConfig(Config{URL: raw, Name: "rig"}, "test", set)
					if err != nil {
						t.Fatal(err)
					}
					conn, err := connect(t.Context(), cfg)
					if err != nil {
						t.Fatalf("%s: %v", raw, err)
					}
					var got string
					err = conn.QueryRow(t.Context(), "SELECT concat_ws(' ', current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'), "+
						"current_setting('tcp_keepalives_count'), (inet_client_addr() IS NOT NULL)::text)").Scan(&got)
					_ = conn.Close(t.Context())
					if err != nil || got != want {
						t.Errorf("%s with %v: %q, %v, want %q", raw, set, got, err, want)
					}
				}
			}
		})
	}
}
