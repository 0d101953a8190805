package servers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const nobody = 65534 // who runs the programs if root would

// private is what is the same of every server that one test has to itself. Its
// methods fail the test on an error.
type private struct {
	tb       testing.TB
	name     string // names the server in the test's log
	base     string // holds the data folder and what must not be in it
	bin      string // holds the programs
	env      []string
	signals  map[string]os.Signal // end it, by the way to stop
	settings map[string]string
	// command is the program that serves on port, and what it says when it is ready.
	command func() (cmd *exec.Cmd, ready string)

	port    int
	process *process // nil before the first start
}

// launchAnywhere starts the server for the first time, on a port that is free. It ends
// with the test.
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

// launch starts the server and returns when it takes connections.
func (p *private) launch() error {
	p.tb.Helper()
	process, err := run(p.command())
	p.process = process
	return err
}

// Stop ends the server: fast shuts it down in order and ends its sessions, immediate
// is a crash, and smart, which only PostgreSQL has, waits for the sessions to end. It
// returns when the server has ended, and tells how long that took. It may be called
// from any goroutine.
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

// removedSetting is the value of a setting that is not to be.
const removedSetting = "-"

// Restart starts the server, after a fast stop if it runs. Settings are changed or
// added, and taken away by the value "-"; nil keeps them.
func (p *private) Restart(settings map[string]string) {
	p.tb.Helper()
	p.Stop("fast")
	for name, value := range settings {
		if p.settings[name] = value; value == removedSetting {
			delete(p.settings, name)
		}
	}
	if err := p.launch(); err != nil {
		p.tb.Fatal(err)
	}
}

// Signal sends the server a signal, such as SIGSTOP, and does not wait.
func (p *private) Signal(signal os.Signal) {
	p.tb.Helper()
	if err := p.process.os.Signal(signal); err != nil {
		p.tb.Error(err)
	}
}

// Log returns what the server has logged since it was last started.
func (p *private) Log() string { return p.process.output.String() }

// program is one of the server's programs.
func (p *private) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = p.base // the test's own may be closed to the server's user
	cmd.Env = p.env
	cmd.SysProcAttr = attributes()
	return cmd
}

// certify makes a certificate for localhost and 127.0.0.1, and returns the files of
// the authority that signed it, of the certificate and of its key.
func (p *private) certify() (caFile, certFile, keyFile string) {
	p.tb.Helper()
	ca, cert, key := certificates(p.tb)
	// Beside the data folder: a new standby copies only that.
	caFile, certFile, keyFile = filepath.Join(p.base, "ca.crt"), filepath.Join(p.base, "server.crt"), filepath.Join(p.base, "server.key")
	write(p.tb, caFile, ca)
	write(p.tb, certFile, cert)
	write(p.tb, keyFile, key)
	return caFile, certFile, keyFile
}

func (p *private) end() {
	p.Stop("immediate")
	if p.tb.Failed() && p.process != nil {
		const most = 8 << 10
		log := p.Log()
		p.tb.Logf("%s logged:\n%s", p.name, strings.TrimSpace(log[max(0, len(log)-most):]))
	}
}
