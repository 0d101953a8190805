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

const nobody = 65534 // who runs the programs if root would

// Server is a PostgreSQL server that one test has to itself.
type Server struct {
	// URL leads to the database postgres as user postgres, who may do
	// everything. It stays the same when the server is started again.
	URL string
	// Dir is the data folder.
	Dir string

	tb       testing.TB
	version  int
	base     string // holds Dir and what must not be in it
	port     int
	config   string // postgresql.conf as initdb wrote it
	hba      string // pg_hba.conf as initdb wrote it
	settings map[string]string
	primary  *Server  // of a standby; else nil
	process  *process // nil before the first start
}

// Start makes a new server of a major version and starts it. Settings are those
// of postgresql.conf. They replace the defaults of this package, which are those
// of PostgreSQL but for wal_level=logical and more senders and slots. The server
// ends with the test.
func Start(tb testing.TB, version int, settings map[string]string) *Server {
	tb.Helper()
	s := &Server{tb: tb, version: version, settings: map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"wal_level":               "logical",
		"max_wal_senders":         "50",
		"max_replication_slots":   "50",
		"jit":                     "off", // its library may not be there
	}}
	maps.Copy(s.settings, settings)
	require(tb, version, "BIN")
	s.base = folder(tb)
	s.Dir = filepath.Join(s.base, "data")
	s.initialize()
	tb.Cleanup(s.end)
	s.launchAnywhere()
	return s
}

// launchAnywhere starts the server for the first time, on a port that is free.
func (s *Server) launchAnywhere() {
	s.tb.Helper()
	err := onFreePort(func(port int) error {
		s.port = port
		return s.launch()
	})
	if err != nil {
		s.tb.Fatal(err)
	}
	s.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// Stop ends the server as pg_ctl does: smart waits for the sessions to end, fast
// ends them, immediate is a crash. It returns when the server has ended, and
// tells how long that took. It may be called from any goroutine.
func (s *Server) Stop(mode string) time.Duration {
	signals := map[string]os.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}
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
// or added; nil keeps them.
func (s *Server) Restart(settings map[string]string) {
	s.tb.Helper()
	s.Stop("fast")
	maps.Copy(s.settings, settings)
	if err := s.launch(); err != nil {
		s.tb.Fatal(err)
	}
}

// HBA puts lines in front of pg_hba.conf and restarts the server. The lines that
// follow trust everybody from 127.0.0.1.
func (s *Server) HBA(lines ...string) {
	s.tb.Helper()
	write(s.tb, filepath.Join(s.Dir, "pg_hba.conf"), strings.Join(lines, "\n")+"\n"+s.hba)
	s.Restart(nil)
}

// Log returns what the server has logged since it was last started.
func (s *Server) Log() string { return s.process.output.String() }

func (s *Server) program(name string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(require(s.tb, s.version, "BIN"), name))
	cmd.Dir = s.base // the test's own may be closed to the server's user
	cmd.Env = environment(variable(s.version, "LIB"))
	cmd.SysProcAttr = attributes()
	return cmd
}

func (s *Server) initialize() {
	s.tb.Helper()
	cmd := s.program("initdb")
	// Without a sync: the data is thrown away. The server itself does sync.
	cmd.Args = append(cmd.Args, "-D", s.Dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("initdb: %v\n%s", err, out)
	}
	s.config = s.read("postgresql.conf")
	s.hba = s.read("pg_hba.conf")
}

// launch starts the server and returns when it takes connections.
func (s *Server) launch() error {
	s.tb.Helper()
	s.writeConfig()
	cmd := s.program("postgres")
	cmd.Args = append(cmd.Args, "-D", s.Dir, "-p", strconv.Itoa(s.port))
	process, err := run(cmd, " ready to accept ")
	s.process = process
	return err
}

func (s *Server) end() {
	s.Stop("immediate")
	if s.tb.Failed() && s.process != nil {
		const most = 8 << 10
		log := s.Log()
		s.tb.Logf("PostgreSQL %d logged:\n%s", s.version, log[max(0, len(log)-most):])
	}
}

// writeConfig writes the settings to a file, not on the command line, so that
// ALTER SYSTEM and a reload can change them.
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
