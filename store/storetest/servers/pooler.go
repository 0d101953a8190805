package servers

import (
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Pooler starts pgbouncer in front of a server and returns its URL. It ends with the test.
// mode is its pool_mode: session, transaction or statement. ignore lists the start-up
// parameters to ignore, because pgbouncer rejects unknown ones. It accepts every client as
// the user of the server's URL.
func Pooler(tb testing.TB, server, mode string, ignore ...string) string {
	tb.Helper()
	const program = "SLUICEBOX_TEST_PGBOUNCER_"
	bin := requireEnv(tb, program+"BIN", "pgbouncer")
	at, err := url.Parse(server)
	if err != nil {
		tb.Fatal(err)
	}

	dir := tempDir(tb)
	err = onFreePort(func(port int) error {
		file := filepath.Join(dir, "pgbouncer.ini")
		write(tb, file, poolerConfig(at, port, mode, ignore))
		cmd := exec.Command(filepath.Join(bin, "pgbouncer"), file)
		cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, environment(program+"LIB"), attributes()
		process, err := run(cmd, "process up")
		if err != nil {
			return err
		}
		tb.Cleanup(func() {
			if _, err := process.end(syscall.SIGQUIT); err != nil {
				tb.Errorf("ending pgbouncer: %v", err)
			}
			if tb.Failed() {
				tb.Logf("pgbouncer logged:\n%s", process.output)
			}
		})
		at.Host = fmt.Sprintf("127.0.0.1:%d", port)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}

	return at.String()
}

// poolerConfig returns a pgbouncer.ini, which cannot contain a URL.
func poolerConfig(server *url.URL, port int, mode string, ignore []string) string {
	return fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
ignore_startup_parameters = %s
`, server.Hostname(), server.Port(), server.User.Username(), port, mode, strings.Join(ignore, ", "))
}
