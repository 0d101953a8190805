package servers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/tlstest"
)

const nobody = 65534 // user of the programs if the test runs as root

// private is the common part of the private servers. Its methods fail the test on an error.
type private struct {
	tb       testing.TB
	name     string // server name in the test's log
	base     string // directory of the data directory and of other files
	bin      string // directory of the programs
	env      []string
	signals  map[string]os.Signal // by stop mode
	settings map[string]string
	// command returns the command that serves on port, and its ready message.
	command func() (cmd *exec.Cmd, ready string)

	port    int
	process *process // nil before the first start
}

// launchAnywhere starts the server for the first time, on a free port. It ends with the
// test.
func (p *private) launchAnywhere() {
	p.tb.Helper()
	p.tb.Cleanup(p.end)
	err := onFreePort(func(port int) error {
		p.port = port
		return p.launch()
	})
	if err != nil {
		p.tb.Fatal(err)
	}
}

// launch starts the server and returns when it accepts connections.
func (p *private) launch() error {
	p.tb.Helper()
	process, err := run(p.command())
	p.process = process
	return err
}

// Stop stops the server, waits for its end and returns the duration. It is safe for
// concurrent use. Modes:
//
//   - fast: a regular shutdown that ends the sessions,
//   - immediate: a crash,
//   - smart (PostgreSQL only): waits until the sessions end.
func (p *private) Stop(mode string) time.Duration {
	signal, ok := p.signals[mode]
	if !ok {
		p.tb.Errorf("no way to stop a server is named %q", mode)
		return 0
	}

	if p.process == nil || !p.process.running() {
		return 0
	}

	took, err := p.process.end(signal)
	if err != nil {
		p.tb.Errorf("a %s stop of the server: %v", mode, err)
	}

	return took
}

// removedSetting is the value of a setting to remove.
const removedSetting = "-"

// Restart starts the server, after a fast stop if it runs. Settings are changed or added;
// the value "-" removes one, and nil keeps all.
func (p *private) Restart(settings map[string]string) {
	p.tb.Helper()
	p.Stop("fast")
	for name, value := range settings {
		if p.settings[name] = value; value == removedSetting {
			delete(p.settings, name)
		}
	}
	err := p.launch()
	for end := time.Now().Add(portPatience); errors.Is(err, errPortTaken) && time.Now().Before(end); err = p.launch() {
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		p.tb.Fatal(err)
	}
}

// portPatience is how long Restart waits for a server of another test that looks for a free port and has
// tried this one.
const portPatience = 10 * time.Second

// Signal sends the server a signal, for example SIGSTOP, without waiting.
func (p *private) Signal(signal os.Signal) {
	p.tb.Helper()
	if err := p.process.os.Signal(signal); err != nil {
		p.tb.Error(err)
	}
}

// Freeze stops the server's process, and Thaw lets it go on.
func (p *private) Freeze() {
	p.tb.Helper()
	p.Signal(syscall.SIGSTOP)
	if err := awaitStop(p.process.os.Pid); err != nil {
		p.tb.Error(err)
	}
}

// Thaw ends Freeze.
func (p *private) Thaw() { p.Signal(syscall.SIGCONT) }

// Log returns the server's output since its last start.
func (p *private) Log() string { return p.process.output.String() }

// program returns a command of the server's installation.
func (p *private) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = p.base // the server's user may not be able to access the test's directory
	cmd.Env = p.env
	cmd.SysProcAttr = attributes()
	return cmd
}

// certify creates a certificate for localhost and 127.0.0.1. It returns the files of its
// CA, of the certificate and of the key.
func (p *private) certify() (caFile, certFile, keyFile string) {
	p.tb.Helper()
	ca := tlstest.New(p.tb)
	cert, key := ca.Certificate("localhost")
	// Outside the data directory, which is the only part that a new standby copies.
	caFile, certFile, keyFile = filepath.Join(p.base, "ca.crt"), filepath.Join(p.base, "server.crt"), filepath.Join(p.base, "server.key")
	write(p.tb, caFile, string(ca.CA))
	write(p.tb, certFile, string(cert))
	write(p.tb, keyFile, string(key))
	return caFile, certFile, keyFile
}

func (p *private) end() {
	p.Stop("immediate")
	if p.tb.Failed() && p.process != nil {
		const maxBytes = 8 << 10
		log := p.Log()
		p.tb.Logf("%s logged:\n%s", p.name, strings.TrimSpace(log[max(0, len(log)-maxBytes):]))
	}
}
