package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
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
	// folderPrefix begins the names of folders.
	folderPrefix = "sluicebox-pg"
)

var errPortTaken = errors.New("the port is taken")

// process is a program that runs beside a test.
type process struct {
	os     *os.Process
	output *output
	ended  chan struct{} // closed when it has ended
}

// run starts a program and returns once it prints the text ready. The process
// is returned also where it did not, for what it printed; it has ended then.
func run(cmd *exec.Cmd, ready string) (*process, error) {
	cmd.WaitDelay = startTimeout // children that outlive their parent hold the pipe
	p := &process{output: newOutput(), ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if err := cmd.Start(); err != nil {
		close(p.ended)
		return p, err
	}
	p.os = cmd.Process
	go func() {
		_ = cmd.Wait() // how it ended is in its output
		close(p.ended)
	}()
	if p.output.await(ready, p.ended, startTimeout) {
		return p, nil
	}
	_, _ = p.end(syscall.SIGQUIT) // a server ends its children first
	text := p.output.String()
	if strings.Contains(text, "ddress already in use") {
		return p, errPortTaken
	}
	return p, fmt.Errorf("%s did not start:\n%s", cmd.Path, text)
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// end sends a signal, waits until the program has ended, and tells how long that
// took.
func (p *process) end(signal os.Signal) (time.Duration, error) {
	began := time.Now()
	err := p.os.Signal(signal)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		err = errors.Join(err, fmt.Errorf("it has not ended after %v", stopTimeout))
		_ = p.os.Kill()
		<-p.ended
	}
	return time.Since(began), err
}

// onFreePort launches a server on ports until one is free. They are below those
// that the system gives to outgoing connections, which could take ours while the
// server is down.
func onFreePort(launch func(port int) error) (err error) {
	for range portTries {
		port := 20000 + rand.IntN(10000)
		if err = launch(port); !errors.Is(err, errPortTaken) {
			return err
		}
		err = fmt.Errorf("port %d: %w", port, err)
	}
	return err
}

// folder makes a folder for a program's user, which for root is nobody. It goes
// with the test.
func folder(tb testing.TB) string {
	tb.Helper()
	under := os.Getenv("SLUICEBOX_TEST_TMP")
	if under == "" {
		under = "/var/tmp" // a disk, and open to all; $TMPDIR may be neither
	}
	dir, err := os.MkdirTemp(under, folderPrefix)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	own(tb, dir)
	return dir
}

// write writes a file that only the program's user may read.
func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	own(tb, path)
}

func own(tb testing.TB, path string) {
	tb.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		tb.Fatal(err)
	}
}
