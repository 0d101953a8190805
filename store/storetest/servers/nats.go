package servers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// NATSVersion is a NATS server of the tests.
type NATSVersion string

// NATS servers. NATS29 has no atomic batches.
const (
	NATS   NATSVersion = "NATS"
	NATS29 NATSVersion = "NATS29"
)

// NATSServer is a private NATS server with JetStream, of one test.
type NATSServer struct {
	// URL is its address, which does not change when it restarts.
	URL string
	private
}

// Start starts a server, which ends with the test. Settings are those of its configuration file,
// for example max_payload; the value may be a block in braces. The test is skipped if the
// program is not there.
func (v NATSVersion) Start(tb testing.TB, settings map[string]string) *NATSServer {
	tb.Helper()
	bin := requireEnv(tb, "SLUICEBOX_TEST_"+string(v)+"_BIN", strings.ToLower(string(v)))
	base := tempDir(tb)
	s := &NATSServer{private: private{
		tb: tb, name: string(v), base: base, bin: bin, env: os.Environ(),
		settings: map[string]string{"jetstream": fmt.Sprintf("{store_dir: %q}", filepath.Join(base, "data"))},
		signals:  map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	s.command = s.serve
	maps.Copy(s.settings, settings)
	s.launchAnywhere()
	s.URL = fmt.Sprintf("nats://127.0.0.1:%d", s.port)
	return s
}

// Cluster starts servers that share their streams. Names begin with n1. They are ready before they
// have elected a leader, so the first requests may fail.
func (v NATSVersion) Cluster(tb testing.TB, size int) (all []*NATSServer) {
	tb.Helper()
	// Other servers may take a port of 127.0.0.1 before this one does, so the cluster has a loopback
	// address of its own (Linux has all of 127.0.0.0/8).
	const firstPort = 6222
	address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(255), 1+rand.IntN(254))
	routes := make([]string, size)
	for i := range routes {
		routes[i] = fmt.Sprintf("%s:%d", address, firstPort+i)
	}
	for i := range routes {
		all = append(all, v.Start(tb, map[string]string{
			"server_name": fmt.Sprintf("n%d", i+1),
			"cluster":     fmt.Sprintf("{name: c, listen: %q, routes: [nats://%s]}", routes[i], strings.Join(routes, ", nats://")),
		}))
	}
	return all
}

// serve returns the command that serves on the server's port.
func (s *NATSServer) serve() (*exec.Cmd, string) {
	s.tb.Helper()
	file := filepath.Join(s.base, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\n", s.port)
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		text += name + ": " + s.settings[name] + "\n"
	}
	write(s.tb, file, text)
	return s.program("nats-server", "-c", file), "Server is ready"
}

// Reload makes the running server take settings. Its clients stay connected.
func (s *NATSServer) Reload(settings map[string]string) {
	s.tb.Helper()
	maps.Copy(s.settings, settings)
	s.serve()
	s.Signal(syscall.SIGHUP)
	const done = "Reloaded server configuration"
	if !s.process.output.await(done, s.process.ended, reloadTimeout) {
		s.tb.Fatalf("%s did not say %q", s.name, done)
	}
}

const reloadTimeout = 30 * time.Second

// TLS restarts the server with a certificate for localhost and 127.0.0.1, and returns the file of
// the CA that signed it. With verify it asks clients for a certificate of that CA too, for
// example the server's own, whose files it returns.
func (s *NATSServer) TLS(verify bool) (caFile, certFile, keyFile string) {
	s.tb.Helper()
	caFile, certFile, keyFile = s.certify()
	s.Restart(map[string]string{"tls": fmt.Sprintf("{cert_file: %q, key_file: %q, ca_file: %q, verify: %t}", certFile, keyFile, caFile, verify)})
	return caFile, certFile, keyFile
}
