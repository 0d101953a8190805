package servers

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
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

// Server is a private PostgreSQL server of one test.
type Server struct {
	// URL is the URL of the database postgres for the user postgres, a superuser. It does
	// not change when the server restarts.
	URL string
	// Dir is the data directory.
	Dir string

	private
	version int
	config  string  // postgresql.conf as initdb wrote it
	hba     string  // pg_hba.conf as initdb wrote it
	primary *Server // of a standby; else nil
}

// newServer returns a server without a data directory.
func newServer(tb testing.TB, version int, settings map[string]string) *Server {
	tb.Helper()
	s := &Server{version: version, private: private{
		tb: tb, name: fmt.Sprintf("PostgreSQL %d", version), settings: settings,
		bin: require(tb, version, "BIN"), env: environment(variable(version, "LIB")),
		signals: map[string]os.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}, // as pg_ctl does
	}}
	s.base = tempDir(tb)
	s.Dir = filepath.Join(s.base, "data")
	s.command = s.serve
	return s
}

// postgresSettings returns production settings for streaming.
func postgresSettings() map[string]string {
	return map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"wal_level":               "logical",
		"max_wal_senders":         "50",
		"max_replication_slots":   "50",
		"jit":                     "off", // its library may be missing
	}
}

// Start creates and starts a server of a major version. It ends with the test. Settings are
// for postgresql.conf. They replace the defaults of this package, which are PostgreSQL's
// with wal_level=logical and more senders and slots.
func Start(tb testing.TB, version int, settings map[string]string) *Server {
	tb.Helper()
	s := newServer(tb, version, postgresSettings())
	maps.Copy(s.settings, settings)
	s.initialize()
	s.start()
	return s
}

// start starts the server for the first time.
func (s *Server) start() {
	s.tb.Helper()
	s.launchAnywhere()
	s.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// HBA adds lines at the top of pg_hba.conf and restarts the server. The lines below them
// trust every client from 127.0.0.1.
func (s *Server) HBA(lines ...string) {
	s.tb.Helper()
	write(s.tb, filepath.Join(s.Dir, "pg_hba.conf"), strings.Join(lines, "\n")+"\n"+s.hba)
	s.Restart(nil)
}

// initialize creates the data directory, as a copy if there is a template.
func (s *Server) initialize() {
	s.tb.Helper()
	// No sync, because the data is thrown away. The server itself does sync.
	cmd := s.program("initdb", "-D", s.Dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	from := os.Getenv(variable(s.version, "DATA"))
	if from != "" {
		cmd = exec.Command("cp", "-R", from, s.Dir)
		cmd.SysProcAttr = attributes()
	}

	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("making a data folder: %v\n%s", err, out)
	}
	if from != "" {
		s.assignSystemID()
	}

	s.config = s.read("postgresql.conf")
	s.hba = s.read("pg_hba.conf")
}

// assignSystemID gives a copied data directory a new system identifier, as initdb would. The
// identifier is the first number of pg_control, with the seconds in its upper half. The
// last field of pg_control is a checksum of the preceding bytes. pg_resetwal starts a WAL
// with the new identifier.
//
// Source: src/include/catalog/pg_control.h of versions 15 and 18.
func (s *Server) assignSystemID() {
	s.tb.Helper()
	path := filepath.Join(s.Dir, "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		s.tb.Fatal(err)
	}

	end := 8
	for castagnoli(control[:end]) != binary.LittleEndian.Uint32(control[end:]) {
		if end += 4; end+4 > len(control) {
			s.tb.Fatalf("%s has no checksum", path)
		}
	}

	if _, err := rand.Read(control[:4]); err != nil { // lower half
		s.tb.Fatal(err)
	}

	binary.LittleEndian.PutUint32(control[end:], castagnoli(control[:end]))
	if err := os.WriteFile(path, control, 0o600); err != nil {
		s.tb.Fatal(err)
	}
	if out, err := s.program("pg_resetwal", "-D", s.Dir).CombinedOutput(); err != nil {
		s.tb.Fatalf("pg_resetwal: %v\n%s", err, out)
	}
}

func castagnoli(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }

// serve writes the settings, and returns the server command and its ready message.
func (s *Server) serve() (cmd *exec.Cmd, ready string) {
	s.tb.Helper()
	s.writeConfig()
	return s.program("postgres", "-D", s.Dir, "-p", strconv.Itoa(s.port)), " ready to accept "
}

// writeConfig writes the settings to a file instead of the command line, so that ALTER
// SYSTEM and a reload can change them.
func (s *Server) writeConfig() {
	s.tb.Helper()
	var conf strings.Builder
	conf.WriteString(s.config)
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(s.settings[name], "'", "''"))
	}
	write(s.tb, filepath.Join(s.Dir, "postgresql.conf"), conf.String())
}

func (s *Server) read(name string) string {
	s.tb.Helper()
	text, err := os.ReadFile(filepath.Join(s.Dir, name))
	if err != nil {
		s.tb.Fatal(err)
	}
	return string(text)
}
