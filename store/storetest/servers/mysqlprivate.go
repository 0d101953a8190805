package servers

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// MySQLServer is a server of MySQL or MariaDB that one test has to itself.
type MySQLServer struct {
	// URL leads to the server, and to no database, as root, who may do everything.
	// It stays the same when the server is started again.
	URL string
	// Dir is the data folder.
	Dir string
	// Flavour is the kind of server.
	Flavour Flavour

	tb       testing.TB
	base     string // holds Dir and what must not be in it
	port     int
	settings map[string]string
	process  *process // nil before the first start
}

// programOf names the flavour's server, and what makes its data folder.
func (f Flavour) programOf() (server string, initialize []string) {
	if f == MariaDB {
		return "mariadbd", []string{"mariadb-install-db", "--auth-root-authentication-method=normal",
			"--skip-test-db", "--skip-name-resolve", "--force"}
	}
	return "mysqld", []string{"mysqld", "--initialize-insecure"}
}

// privateSettings are those of a user who wants to stream, so with fsync.
func (f Flavour) privateSettings() map[string]string {
	settings := map[string]string{
		"bind-address":                   "127.0.0.1",
		"socket":                         "s", // in the data folder: a path has a length limit
		"server-id":                      "1",
		"log-bin":                        "binlog",
		"binlog-row-image":               "FULL",
		"sync-binlog":                    "1",
		"innodb-flush-log-at-trx-commit": "1",
		"innodb-flush-method":            "fsync",
	}
	if f == MariaDB {
		maps.Copy(settings, map[string]string{"binlog-format": "ROW", "gtid-strict-mode": "ON", "innodb-log-file-size": "16M"})
	} else {
		maps.Copy(settings, map[string]string{"mysqlx": "OFF", "gtid-mode": "ON", "enforce-gtid-consistency": "ON", "innodb-redo-log-capacity": "16M"})
	}
	return settings
}

// Start makes a new server and starts it. Settings are options of the server
// without their dashes, such as binlog-row-metadata; a value of "" is an option
// without one. They replace the defaults of this package, which are those of the
// flavour but for what a stream needs. The server ends with the test.
func (f Flavour) Start(tb testing.TB, settings map[string]string) *MySQLServer {
	tb.Helper()
	s := &MySQLServer{tb: tb, Flavour: f, settings: f.privateSettings()}
	maps.Copy(s.settings, settings)
	f.require(tb, "BIN")
	s.base = folder(tb)
	s.Dir = filepath.Join(s.base, "data")
	if err := os.Mkdir(s.tmp(), 0o700); err != nil {
		tb.Fatal(err)
	}
	own(tb, s.tmp())
	s.initialize()
	tb.Cleanup(s.end)
	err := onFreePort(func(port int) error {
		s.port = port
		return s.launch()
	})
	if err != nil {
		tb.Fatal(err)
	}
	s.URL = fmt.Sprintf("%s://root@127.0.0.1:%d/?tls=false", f.scheme(), s.port)
	return s
}

// Database makes an empty database in the server and returns its URL.
func (s *MySQLServer) Database() string {
	s.tb.Helper()
	name := databaseName(s.tb)
	ExecMySQL(s.tb, s.URL, "CREATE DATABASE "+name)
	return strings.Replace(s.URL, "/?", "/"+name+"?", 1)
}

// Stop ends the server: fast shuts it down in order, immediate is a crash. It
// returns when the server has ended, and tells how long that took. It may be
// called from any goroutine.
func (s *MySQLServer) Stop(mode string) time.Duration {
	signals := map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL}
	signal, ok := signals[mode]
	if !ok {
		s.tb.Errorf("no way to stop a server is named %q", mode)
		return 0
	}
	if s.process == nil || !s.process.running() {
		return 0
	}
	took, err := s.process.end(signal)
	if err != nil {
		s.tb.Errorf("a %s stop of the server: %v", mode, err)
	}
	return took
}

// Restart starts the server, after a fast stop if it runs. Settings are changed
// or added, and taken away by the value "-"; nil keeps them.
func (s *MySQLServer) Restart(settings map[string]string) {
	s.tb.Helper()
	s.Stop("fast")
	for name, value := range settings {
		if s.settings[name] = value; value == "-" {
			delete(s.settings, name)
		}
	}
	if err := s.launch(); err != nil {
		s.tb.Fatal(err)
	}
}

// TLS restarts the server with a certificate for localhost and 127.0.0.1, and
// returns the file of the authority that signed it.
func (s *MySQLServer) TLS() (caFile string) {
	s.tb.Helper()
	ca, cert, key := certificates(s.tb)
	caFile = filepath.Join(s.base, "ca.crt")
	certFile, keyFile := filepath.Join(s.base, "server.crt"), filepath.Join(s.base, "server.key")
	write(s.tb, caFile, ca)
	write(s.tb, certFile, cert)
	write(s.tb, keyFile, key)
	s.Restart(map[string]string{"ssl-ca": caFile, "ssl-cert": certFile, "ssl-key": keyFile})
	return caFile
}

// Signal sends the server a signal, such as SIGSTOP, and does not wait.
func (s *MySQLServer) Signal(signal os.Signal) {
	s.tb.Helper()
	if err := s.process.os.Signal(signal); err != nil {
		s.tb.Error(err)
	}
}

// Log returns what the server has logged since it was last started.
func (s *MySQLServer) Log() string { return s.process.output.String() }

func (s *MySQLServer) tmp() string { return filepath.Join(s.base, "tmp") }

func (s *MySQLServer) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.Flavour.require(s.tb, "BIN"), name), append([]string{"--no-defaults"}, args...)...)
	cmd.Dir = s.base // the test's own may be closed to the server's user
	cmd.Env = s.Flavour.environment(s.tmp())
	cmd.SysProcAttr = attributes()
	return cmd
}

// initialize makes the data folder, of a copy where there is one.
func (s *MySQLServer) initialize() {
	s.tb.Helper()
	_, init := s.Flavour.programOf()
	cmd := s.program(init[0], append(init[1:], "--datadir="+s.Dir, "--innodb-flush-method=fsync")...)
	if from := s.Flavour.template(); from != "" {
		cmd = exec.Command("cp", "-R", from, s.Dir)
		cmd.SysProcAttr = attributes()
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("making a data folder: %v\n%s", err, out)
	}
	// The server's UUID: each makes its own.
	if err := os.Remove(filepath.Join(s.Dir, "auto.cnf")); err != nil && !os.IsNotExist(err) {
		s.tb.Fatal(err)
	}
}

// launch starts the server and returns when it takes connections.
func (s *MySQLServer) launch() error {
	s.tb.Helper()
	args := []string{"--datadir=" + s.Dir, "--port=" + strconv.Itoa(s.port)}
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		option := "--" + name
		if value := s.settings[name]; value != "" {
			option += "=" + value
		}
		args = append(args, option)
	}
	server, _ := s.Flavour.programOf()
	// The spaces: what it says where the port is taken names it too.
	process, err := run(s.program(server, args...), fmt.Sprintf("  port: %d  ", s.port))
	s.process = process
	return err
}

func (s *MySQLServer) end() {
	s.Stop("immediate")
	if s.tb.Failed() && s.process != nil {
		const most = 8 << 10
		log := s.Log()
		s.tb.Logf("%s logged:\n%s", s.Flavour, strings.TrimSpace(log[max(0, len(log)-most):]))
	}
}
