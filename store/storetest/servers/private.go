package servers

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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

const (
	startTimeout = time.Minute
	// A fast shutdown waits for receivers of the log, at most for the default
	// of wal_sender_timeout.
	stopTimeout = 2 * time.Minute
	portTries   = 10
	nobody      = 65534
)

var errPortTaken = errors.New("the port is taken")

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
	output   *output
	process  *os.Process
	ended    chan struct{} // closed when process has ended; nil before the first start
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
	s.makeFolder()
	s.initialize()
	tb.Cleanup(s.end)
	var err error
	for range portTries {
		// Below the ports that the system gives to outgoing connections: those
		// could take ours while the server is down.
		s.port = 20000 + rand.IntN(10000)
		if err = s.launch(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	s.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	return s
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
	if !s.running() {
		return 0
	}
	began := time.Now()
	if err := s.process.Signal(signal); err != nil {
		s.tb.Errorf("stopping the server: %v", err)
	}
	select {
	case <-s.ended:
	case <-time.After(stopTimeout):
		s.tb.Errorf("the server has not ended %v after a %s stop", stopTimeout, mode)
		_ = s.process.Kill()
		<-s.ended
	}
	return time.Since(began)
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
	s.write(filepath.Join(s.Dir, "pg_hba.conf"), strings.Join(lines, "\n")+"\n"+s.hba)
	s.Restart(nil)
}

// Log returns what the server has logged since it was last started.
func (s *Server) Log() string { return s.output.String() }

func (s *Server) program(name string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(require(s.tb, s.version, "BIN"), name))
	cmd.Dir = s.base // the test's own may be closed to the server's user
	cmd.Env = environment(s.version)
	cmd.SysProcAttr = attributes()
	return cmd
}

// makeFolder makes a folder for the server's user, which for root is nobody:
// PostgreSQL refuses root.
func (s *Server) makeFolder() {
	s.tb.Helper()
	under := os.Getenv("SLUICEBOX_TEST_TMP")
	if under == "" {
		under = "/var/tmp" // a disk, and open to all; $TMPDIR may be neither
	}
	base, err := os.MkdirTemp(under, "sluicebox-pg")
	if err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			s.tb.Error(err)
		}
	})
	s.base, s.Dir = base, filepath.Join(base, "data")
	s.own(base)
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
	cmd.WaitDelay = startTimeout // children that outlive their parent hold the pipe
	output := newOutput()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	s.process, s.output, s.ended = cmd.Process, output, ended
	if output.await(" ready to accept ", ended, startTimeout) {
		return nil
	}
	s.Stop("immediate")
	if strings.Contains(output.String(), "could not bind") {
		return fmt.Errorf("port %d: %w", s.port, errPortTaken)
	}
	return fmt.Errorf("the server did not start:\n%s", output)
}

func (s *Server) running() bool {
	if s.ended == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

func (s *Server) end() {
	s.Stop("immediate")
	if s.tb.Failed() && s.output != nil {
		const most = 8 << 10
		log := s.output.String()
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
	s.write(filepath.Join(s.Dir, "postgresql.conf"), conf.String())
}

func (s *Server) read(name string) string {
	s.tb.Helper()
	text, err := os.ReadFile(filepath.Join(s.Dir, name))
	if err != nil {
		s.tb.Fatal(err)
	}
	return string(text)
}

// write writes a file that only the server's user may read.
func (s *Server) write(path, text string) {
	s.tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.tb.Fatal(err)
	}
	s.own(path)
}

func (s *Server) own(path string) {
	s.tb.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		s.tb.Fatal(err)
	}
}
