package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const (
	startTimeout = 3 * time.Minute
	// A fast shutdown waits for WAL receivers, at most for the default wal_sender_timeout.
	stopTimeout = 2 * time.Minute
	portTries   = 10
	// tempDirPrefix is the prefix of directory names.
	tempDirPrefix = "sluicebox-pg"
)

var errPortTaken = errors.New("the port is taken")

// process is a program that runs during a test.
type process struct {
	os     *os.Process
	output *output
	ended  chan struct{} // closed when the program has ended
}

// run starts a program and returns once its output contains ready. If the program fails to
// start, run returns the ended process too, because its output has the reason.
func run(cmd *exec.Cmd, ready string) (*process, error) {
	cmd.WaitDelay = startTimeout // children that outlive their parent keep the pipe open
	p := &process{output: newOutput(), ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if err := cmd.Start(); err != nil {
		close(p.ended)
		return p, err
	}

	p.os = cmd.Process
	go func() {
		_ = cmd.Wait() // the reason is in the output
		close(p.ended)
	}()
	if p.output.await(ready, p.ended, startTimeout) {
		return p, nil
	}

	_, _ = p.end(deathSignal(cmd.SysProcAttr)) // QUIT: a server ends its children first
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

// end sends a signal, waits for the program's end and returns the duration.
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

// onFreePort launches a server on random ports until one is free. The ports are below the
// range for outgoing connections, because such a connection could take the port while the
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

// tempDir creates a directory for the programs' user, which is nobody if the test runs as
// root. It is deleted with the test.
func tempDir(tb testing.TB) string {
	tb.Helper()
	under := os.Getenv("SLUICEBOX_TEST_TMP")
	if under == "" {
		under = "/var/tmp" // on a disk and accessible to all, which $TMPDIR may not be
	}

	dir, err := os.MkdirTemp(under, tempDirPrefix)
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	chown(tb, dir)
	return dir
}

// write writes a file that only the programs' user may read.
func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	chown(tb, path)
}

func chown(tb testing.TB, path string) {
	tb.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		tb.Fatal(err)
	}
}
