package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
)

const (
	// startTimeout is the time within which a process must read the log, and stopTimeout the
	// time within which it must end.
	startTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
)

// FloorCommand is the subcommand that runs the floor.
const FloorCommand = "bench-floor"

// FloorReady is the line that the floor prints once it reads the log.
const FloorReady = "reading"

// process is a running relay or floor.
type process struct {
	name  string // in errors
	cmd   *exec.Cmd
	log   string        // file with its output
	admin string        // admin address of a relay
	ended chan struct{} // closed once the process has ended; err is the reason
	err   error

	serverCPU time.Duration // of the server, before the process began
}

// startRelay starts a relay and waits until it reads the log.
func (b *bench) startRelay(ctx context.Context, p *benchDatabase, to *receiver) (*process, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}

	file, environ, err := b.writeRelayConfig(p, address, to)
	if err != nil {
		return nil, err
	}
	command := exec.Command(b.env.Program, "run", "-c", file)
	command.Env = environ
	pr, err := b.start("run", p.name+".log", command)
	if err != nil {
		return nil, err
	}

	pr.admin = "http://" + address
	return pr, pr.awaitReady(ctx, pr.isReading)
}

// newFloorConfig creates the objects that a floor reads from, starting now.
func (b *bench) newFloorConfig(ctx context.Context, p *benchDatabase, to *receiver, of floorVariant) (*floor.Config, error) {
	cfg := &floor.Config{
		URL: p.url, Table: p.table.name, Layout: p.layout, Endpoint: to.endpoint(), Topic: to.topic,
		Bulk: of.bulk, NoClaims: of.noClaims, Batch: b.opts.Batch, Senders: b.opts.Senders,
	}
	if err := p.prepareFloor(ctx, cfg); err != nil {
		return nil, fmt.Errorf("prepare floor: %w", err)
	}
	return cfg, nil
}

// startFloor starts a floor, or a peer if it is another program, and waits until it reads the
// log.
func (b *bench) startFloor(ctx context.Context, p *benchDatabase, of *floor.Config, peer string) (*process, error) {
	cfg, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}

	ready := make(chan struct{})
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}

	command := exec.Command(b.env.Program, FloorCommand)
	if peer != "" {
		command = exec.Command(peer)
	}
	command.Stdin, command.Stdout = bytes.NewReader(cfg), in
	pr, err := b.start(cmp.Or(peer, FloorCommand), p.name+".log", command)
	_ = in.Close() // the floor has its own
	if err != nil {
		_ = out.Close()
		return nil, err
	}

	go func() {
		defer func() { _ = out.Close() }()
		lines := bufio.NewScanner(out)
		for lines.Scan() { // to the end, because a peer may print more
			if strings.TrimSpace(lines.Text()) == FloorReady {
				close(ready)
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	return pr, pr.awaitReady(ctx, func(context.Context) bool {
		select {
		case <-ready:
			return true
		default:
			return false
		}
	})
}

// start starts a command to measure, with its output in a log file.
func (b *bench) start(name, log string, command *exec.Cmd) (*process, error) {
	pr := &process{name: name, cmd: command, log: filepath.Join(b.folder, log), ended: make(chan struct{}), serverCPU: b.serverCPU()}
	f, err := os.OpenFile(pr.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log file of %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // the process has its own
	pr.cmd.Stderr = f
	pr.cmd.Env = append(cleanEnvironment(), command.Env...)
	if err := pr.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	go func() {
		pr.err = pr.cmd.Wait()
		close(pr.ended)
	}()
	return pr, nil
}

// awaitReady waits until a started process is ready. Otherwise it stops the process.
func (pr *process) awaitReady(ctx context.Context, ready func(context.Context) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("log not read within %s", startTimeout))
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-pr.ended:
			return pr.earlyExitError()
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s: %w\n%s", pr.name, context.Cause(ctx), pr.logTail()), pr.stop())
		case <-tick.C:
			if ready(ctx) {
				return nil
			}
		}
	}
}

// earlyExitError reports a process that ended by itself.
func (pr *process) earlyExitError() error {
	return fmt.Errorf("%s exited early: %v\n%s", pr.name, pr.err, pr.logTail())
}

// logTail returns the end of the process's output.
func (pr *process) logTail() string {
	const limit = 4 << 10
	text, err := os.ReadFile(pr.log)
	if err != nil {
		return ""
	}
	return string(text[max(0, len(text)-limit):])
}

// isReading reports whether the relay reads the log.
func (pr *process) isReading(ctx context.Context) bool {
	resp, err := pr.get(ctx, "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (pr *process) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, pr.admin+path, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// stop ends the process as a supervisor would, and waits for its end.
func (pr *process) stop() error {
	select {
	case <-pr.ended:
		return pr.earlyExitError()
	default:
	}
	_ = pr.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-pr.ended:
		if pr.err != nil {
			return fmt.Errorf("%s failed: %w\n%s", pr.name, pr.err, pr.logTail())
		}
		return nil
	case <-time.After(stopTimeout):
		_ = pr.cmd.Process.Kill()
		<-pr.ended
		return fmt.Errorf("%s did not end within %s\n%s", pr.name, stopTimeout, pr.logTail())
	}
}

// cpu returns the processor time of an ended process.
func (pr *process) cpu() time.Duration {
	return pr.cmd.ProcessState.UserTime() + pr.cmd.ProcessState.SystemTime()
}

// serverCPU returns the processor time of the database server since its start, 0 if it is not
// known.
func (b *bench) serverCPU() time.Duration {
	if pid := b.server.serverInfo().process; pid != 0 {
		return treeCPU(pid)
	}
	return 0
}

// freeAddress returns a free loopback address.
func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
