package blackbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// relay is one process of the program.
type relay struct {
	t     testing.TB
	cmd   *exec.Cmd
	admin string // http://host:port
	ended chan struct{}

	mu     sync.Mutex
	stderr bytes.Buffer
	grown  chan struct{} // closed and replaced with each line of stderr
}

// adminKey is replaced in a configuration by a free address for the endpoints.
const adminKey = "ADMIN"

// nextPort is the port that was tried last for a free address.
var nextPort atomic.Int32

// freeAddress returns a loopback address that nobody listens on, and that is not among
// those that a system gives to whoever asks for any: the relay takes it later, and
// again after a restart (RFC 6335, section 6: those are 49152 and above; Linux begins
// at 32768).
func freeAddress(t testing.TB) string {
	t.Helper()
	const low, high = 10_000, 30_000
	nextPort.CompareAndSwap(0, low+rand.Int32N(high-low)) // apart from a run beside this one
	for range high - low {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", low+nextPort.Add(1)%(high-low)))
		if err == nil {
			_ = l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port of this machine is free")
	return ""
}

// start runs `sluicebox run` on a configuration in which ADMIN stands for the
// admin address.
func start(t testing.TB, yaml string) *relay {
	t.Helper()
	address := freeAddress(t)
	file := filepath.Join(t.TempDir(), "sluicebox.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(yaml, adminKey, address)), 0o600); err != nil {
		t.Fatal(err)
	}
	return launch(t, file, "http://"+address)
}

// launch runs `sluicebox run` on a file whose admin endpoints, if it has any, are
// at admin. What still runs when the test ends is killed.
func launch(t testing.TB, file, admin string, env ...string) *relay {
	t.Helper()
	r := &relay{t: t, admin: admin, ended: make(chan struct{}), grown: make(chan struct{})}
	r.cmd = exec.Command(binary, "run", "-c", file)
	r.cmd.Env = append(environment(), env...)
	pipe, err := r.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go r.watch(pipe)
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("the relay said:\n%s", r.said())
		}
	})
	return r
}

// environment is this process's without what would configure a relay.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SLUICEBOX_") {
			env = append(env, e)
		}
	}
	// Else a program sleeps for a second at its end
	// (https://go.dev/doc/articles/race_detector#Options).
	return append(env, "GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=10")
}

// watch keeps what the process says and notes its end.
func (r *relay) watch(pipe io.Reader) {
	defer close(r.ended)
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r.mu.Lock()
		r.stderr.Write(lines.Bytes())
		r.stderr.WriteByte('\n')
		close(r.grown)
		r.grown = make(chan struct{})
		r.mu.Unlock()
	}
	_ = r.cmd.Wait()
}

func (r *relay) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stderr.String()
}

// waitFor waits until the process has said something.
func (r *relay) waitFor(text string) {
	r.t.Helper()
	r.waitForWithin(text, patience)
}

// waitForWithin is waitFor with a limit of its own.
func (r *relay) waitForWithin(text string, most time.Duration) {
	r.t.Helper()
	limit := time.After(most)
	for {
		r.mu.Lock()
		found, grown := strings.Contains(r.stderr.String(), text), r.grown
		r.mu.Unlock()
		if found {
			return
		}
		select {
		case <-grown:
		case <-r.ended:
			if !strings.Contains(r.said(), text) {
				r.t.Fatalf("the relay ended (%s) without saying %q:\n%s", r.cmd.ProcessState, text, r.said())
			}
		case <-limit:
			r.t.Fatalf("the relay did not say %q in %s:\n%s", text, most, r.said())
		}
	}
}

// kill ends the process as a crash does.
func (r *relay) kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// freeze stops the process where it is, as its host may be; thaw lets it go on.
func (r *relay) freeze() { _ = r.cmd.Process.Signal(syscall.SIGSTOP) }
func (r *relay) thaw()   { _ = r.cmd.Process.Signal(syscall.SIGCONT) }

// stop asks the process to end and returns its exit code.
func (r *relay) stop() int {
	r.t.Helper()
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	return r.exitCode()
}

// exitCode waits for the process to end.
func (r *relay) exitCode() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(60 * time.Second):
		r.t.Fatalf("the relay did not end in a minute:\n%s", r.said())
	}
	return r.cmd.ProcessState.ExitCode()
}

// get asks an admin endpoint.
func (r *relay) get(path string) (status int, body string) {
	r.t.Helper()
	return r.ask(http.MethodGet, path, "")
}

// ask makes a request to an admin endpoint.
func (r *relay) ask(method, path, request string) (status int, body string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.admin+path, strings.NewReader(request))
	if err != nil {
		r.t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", path, err, r.said())
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// metric returns a sample by its name and labels as they are printed.
func (r *relay) metric(sample string) float64 {
	r.t.Helper()
	_, body := r.get("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return f
		}
	}
	r.t.Fatalf("no metric %s in:\n%s", sample, body)
	return 0
}

// command runs the program to its end and returns what it printed.
func command(t testing.TB, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return commandWithin(t, 60*time.Second, env, args...)
}

// commandWithin is command with a limit of its own.
func commandWithin(t testing.TB, limit time.Duration, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	stdout, stderr, code, err := execute(limit, env, args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr, code
}

// execute is commandWithin for any goroutine.
func execute(limit time.Duration, env []string, args ...string) (stdout, stderr string, code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(environment(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err = cmd.Run(); err != nil && !errors.As(err, &exit) {
		return "", "", 0, err
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode(), nil
}

// within calls check until it returns "", for as long as a state may take to
// come about that nothing signals.
func within(t testing.TB, limit time.Duration, check func() string) {
	t.Helper()
	end := time.After(limit)
	for {
		wrong := check()
		if wrong == "" {
			return
		}
		select {
		case <-end:
			t.Fatalf("after %s: %s", limit, wrong)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// patience is how long a test waits for what does not come, or for the next step
// of what moves. What moves is waited for, however slow the machine is.
const patience = 2 * time.Minute

// dwindle calls left until it returns 0. It fails once what is left has not become
// less for as long as patience.
func dwindle(t testing.TB, what string, left func() int) {
	t.Helper()
	for least := left(); least > 0; {
		within(t, patience, func() string {
			n := left()
			if n >= least {
				return fmt.Sprintf("%d %s", n, what)
			}
			least = n
			return ""
		})
	}
}

// nameFor is a relay's name that no other test has: slots belong to a server,
// which the tests share.
func nameFor(database string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(database))
	return fmt.Sprintf("t%x", h.Sum64())
}

// preset is a configuration of the two seed tables.
//
// It streams or waits: beside other tests, one of which may keep a transaction
// open, mode auto would poll now and then.
func preset(database, receiver, rest string) string {
	return fmt.Sprintf("name: %s\nsource: {mode: stream, url: %q}\nflowcatalyst: {api-base-url: %q}\nadmin: {listen: %s}\n%s",
		nameFor(database), database, receiver, adminKey, rest)
}
