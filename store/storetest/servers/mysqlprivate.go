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
)

// MySQLServer is a private MySQL or MariaDB server of one test.
type MySQLServer struct {
	// URL is the URL of the server, without a database, for root with all privileges. It
	// does not change when the server restarts.
	URL string
	// Dir is the data directory.
	Dir string
	// Flavour is the kind of server.
	Flavour Flavour

	private
}

// programOf returns the server program and the command that creates its data directory.
func (f Flavour) programOf() (server string, initialize []string) {
	if f == MariaDB {
		return "mariadbd", []string{"mariadb-install-db", "--auth-root-authentication-method=normal",
			"--skip-test-db", "--skip-name-resolve", "--force"}
	}
	return "mysqld", []string{"mysqld", "--initialize-insecure"}
}

// privateSettings returns production settings for streaming, so with fsync.
func (f Flavour) privateSettings() map[string]string {
	settings := map[string]string{
		"bind-address":                   "127.0.0.1",
		"socket":                         "s", // inside the data directory, because the path length is limited
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

// Start creates and starts a server, which ends with the test. Settings replace the
// defaults of this package, which are the flavour's plus the requirements of streaming. A
// key is a server option without dashes, for example binlog-row-metadata; the value ""
// means an option without a value.
func (f Flavour) Start(tb testing.TB, settings map[string]string) *MySQLServer {
	tb.Helper()
	base := tempDir(tb)
	s := &MySQLServer{Flavour: f, Dir: filepath.Join(base, "data"), private: private{
		tb: tb, name: string(f), base: base, settings: f.privateSettings(),
		bin: f.require(tb, "BIN"), env: f.environment(filepath.Join(base, "tmp")),
		signals: map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	s.command = s.serve
	maps.Copy(s.settings, settings)
	s.initialize()
	s.launchAnywhere()
	s.URL = fmt.Sprintf("%s://root@127.0.0.1:%d/?tls=false", f.scheme(), s.port)
	return s
}

// Database creates an empty database in the server and returns its URL.
func (s *MySQLServer) Database() string {
	s.tb.Helper()
	name := databaseName(s.tb)
	ExecMySQL(s.tb, s.URL, "CREATE DATABASE "+name)
	return strings.Replace(s.URL, "/?", "/"+name+"?", 1)
}

// TLS restarts the server with a certificate for localhost and 127.0.0.1, and returns the
// file of the CA that signed it.
func (s *MySQLServer) TLS() (caFile string) {
	s.tb.Helper()
	caFile, certFile, keyFile := s.certify()
	s.Restart(map[string]string{"ssl-ca": caFile, "ssl-cert": certFile, "ssl-key": keyFile})
	return caFile
}

// program returns a command of the server's installation that reads no option file.
func (s *MySQLServer) program(name string, args ...string) *exec.Cmd {
	return s.private.program(name, append([]string{"--no-defaults"}, args...)...)
}

// initialize creates the directories, the data directory as a copy if there is a template.
func (s *MySQLServer) initialize() {
	s.tb.Helper()
	tmp := filepath.Join(s.base, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		s.tb.Fatal(err)
	}

	chown(s.tb, tmp)
	_, init := s.Flavour.programOf()
	cmd := s.program(init[0], append(init[1:], "--datadir="+s.Dir, "--innodb-flush-method=fsync")...)
	if from := s.Flavour.template(); from != "" {
		cmd = exec.Command("cp", "-R", from, s.Dir)
		cmd.SysProcAttr = attributes()
	}

	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("making a data folder: %v\n%s", err, out)
	}
	// Remove the server's UUID: each server generates its own.
	if err := os.Remove(filepath.Join(s.Dir, "auto.cnf")); err != nil && !os.IsNotExist(err) {
		s.tb.Fatal(err)
	}
}

// serve returns the server command with the settings, and its ready message.
func (s *MySQLServer) serve() (cmd *exec.Cmd, ready string) {
	args := []string{"--datadir=" + s.Dir, "--port=" + strconv.Itoa(s.port)}
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		option := "--" + name
		if value := s.settings[name]; value != "" {
			option += "=" + value
		}
		args = append(args, option)
	}
	server, _ := s.Flavour.programOf()
	// The spaces distinguish it from the error for a taken port, which names the port too.
	return s.program(server, args...), fmt.Sprintf("  port: %d  ", s.port)
}
