package servers

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// RedisServer is a private Redis server of one test. It keeps what it has stored when it crashes.
type RedisServer struct {
	Addr string // host:port, which does not change when it restarts
	private
}

// Redis starts a server, which ends with the test. Settings are directives of its configuration
// file, for example maxmemory. The test is skipped if the program is not there.
func Redis(tb testing.TB, settings map[string]string) *RedisServer {
	tb.Helper()
	const program = "SLUICEBOX_TEST_REDIS_"
	bin := requireEnv(tb, program+"BIN", "redis")
	base := tempDir(tb)
	data := filepath.Join(base, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		tb.Fatal(err)
	}
	chown(tb, data)
	s := &RedisServer{private: private{
		tb: tb, name: "Redis", base: base, bin: bin, env: environment(program + "LIB"),
		settings: map[string]string{"appendonly": "yes", "save": `""`, "bind": "127.0.0.1", "dir": data},
		signals:  map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	s.command = s.serve
	maps.Copy(s.settings, settings)
	s.launchAnywhere()
	s.Addr = fmt.Sprintf("127.0.0.1:%d", s.port)
	return s
}

// serve returns the command that serves on the server's port.
func (s *RedisServer) serve() (*exec.Cmd, string) {
	s.tb.Helper()
	file := filepath.Join(s.base, "redis.conf")
	port := "port"
	if s.settings["tls-cert-file"] != "" {
		port = "port 0\ntls-port"
	}
	text := fmt.Sprintf("%s %d\n", port, s.port)
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		text += name + " " + s.settings[name] + "\n"
	}
	write(s.tb, file, text)
	return s.program("redis-server", file), "Ready to accept connections"
}

// TLS restarts the server with a certificate for localhost and 127.0.0.1, and returns the file of
// the CA that signed it. It asks clients for a certificate of that CA too, for example the
// server's own, whose files it returns.
func (s *RedisServer) TLS() (caFile, certFile, keyFile string) {
	s.tb.Helper()
	caFile, certFile, keyFile = s.certify()
	s.Restart(map[string]string{"tls-cert-file": certFile, "tls-key-file": keyFile, "tls-ca-cert-file": caFile})
	return caFile, certFile, keyFile
}
