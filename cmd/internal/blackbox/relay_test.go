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

// relay is a process of the program.
type relay struct {
	t     testing.TB
	cmd   *exec.Cmd
	admin string // http://host:port
	ended chan struct{}

	mu     sync.Mutex
	stderr bytes.Buffer
	grown  chan struct{} // closed and replaced with each line of stderr
}

// adminKey is the placeholder in a configuration for a free admin address.
const adminKey = "ADMIN"

// nextPort is the port tried last for a free address.
var nextPort atomic.Int32

// freeAddress returns an unused loopback address below the range of ephemeral ports, because
// the relay binds it later, and again after a restart. Ephemeral ports begin at 49152 (RFC
// 6335, section 6), on Linux at 32768.
func freeAddress(t testing.TB) string {
	t.Helper()
	const low, high = 10_000, 30_000
	nextPort.CompareAndSwap(0, low+rand.Int32N(high-low)) // random, so that parallel runs differ
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

// start runs `sluicebox run` on a configuration in which ADMIN stands for the admin address.
func start(t testing.TB, yaml string) *relay {
	t.Helper()
	address := freeAddress(t)
	file := filepath.Join(t.TempDir(), "sluicebox.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(yaml, adminKey, address)), 0o600); err != nil {
		t.Fatal(err)
	}
	return launch(t, file, "http://"+address)
}

// claimsVariable sets dispatch.claims of all relays, so that any scenario runs with it.
const claimsVariable = "SLUICEBOX_TEST_CLAIMS"

// launch runs `sluicebox run` on a file. admin is the address of its admin endpoints, if any.
// The process is killed at the end of the test if it still runs.
func launch(t testing.TB, file, admin string, env ...string) *relay {
	t.Helper()
	r := &relay{t: t, admin: admin, ended: make(chan struct{}), grown: make(chan struct{})}
	r.cmd = exec.Command(binary, "run", "-c", file)
	r.cmd.Env = append(environment(), env...)
	if mode := os.Getenv(claimsVariable); mode != "" {
		r.cmd.Env = append(r.cmd.Env, "SLUICEBOX_DISPATCH_CLAIMS="+mode)
	}
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

// environment returns this process's environment without variables that configure a relay or its collection of memory.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SLUICEBOX_") && !strings.HasPrefix(e, "GOGC=") {
			env = append(env, e)
		}
	}
	// By default a program with the race detector sleeps for a second at exit
	// (https://go.dev/doc/articles/race_detector#Options).
	return append(env, "GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=10")
}

// watch collects the process's output and waits for its end.
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

// waitFor waits until the process has logged a text.
func (r *relay) waitFor(text string) {
	r.t.Helper()
	r.waitForWithin(text, testTimeout)
}

// waitForWithin is waitFor with another timeout.
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
				r.t.Fatalf("the relay ended (%s) without output %q:\n%s", r.cmd.ProcessState, text, r.said())
			}
		case <-limit:
			r.t.Fatalf("no output %q within %s:\n%s", text, most, r.said())
		}
	}
}

// kill sends SIGKILL, to simulate a crash.
func (r *relay) kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// freeze stops the process with SIGSTOP, like a frozen host. thaw resumes it.
func (r *relay) freeze() { _ = r.cmd.Process.Signal(syscall.SIGSTOP) }
func (r *relay) thaw()   { _ = r.cmd.Process.Signal(syscall.SIGCONT) }

// stop sends SIGTERM and returns the exit code.
func (r *relay) stop() int {
	r.t.Helper()
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	return r.exitCode()
}

// runs reports whether the process has not ended.
func (r *relay) runs() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// exitCode waits for the end of the process.
func (r *relay) exitCode() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(60 * time.Second):
		r.t.Fatalf("the relay did not end in a minute:\n%s", r.said())
	}
	return r.cmd.ProcessState.ExitCode()
}

// get requests an admin endpoint.
func (r *relay) get(path string) (status int, body string) {
	r.t.Helper()
	return r.ask(http.MethodGet, path, "")
}

// ask sends a request to an admin endpoint.
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

// metric returns a sample by its printed name and labels.
func (r *relay) metric(sample string) float64 {
	r.t.Helper()
	_, body := r.get("/metrics")
	for line := range strings.Lines(body) {
		if text, ok := strings.CutPrefix(line, sample+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return f
		}
	}
	r.t.Fatalf("no metric %s in:\n%s", sample, body)
	return 0
}

// initOutbox makes the table of a layout.
func initOutbox(t testing.TB, layout, source string) {
	t.Helper()
	if out, errs, code := command(t, nil, "init", "--outbox", layout, "--source", source, "--apply"); code != 0 {
		t.Fatalf("init --outbox: exit code %d, want 0\n%s%s", code, out, errs)
	}
}

// command runs the program to its end and returns its output.
func command(t testing.TB, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return commandWithin(t, 60*time.Second, env, args...)
}

// commandWithin is command with another timeout.
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

// within polls check until it returns "", or fails after a timeout. It is for states that no
// event announces. A check that counts the rows of a large table runs less often, because the
// relay under test needs the processors.
func within(t testing.TB, limit time.Duration, check func() string) {
	t.Helper()
	const minPause, maxPause = 50 * time.Millisecond, 500 * time.Millisecond
	end := time.After(limit)
	for {
		began := time.Now()
		wrong := check()
		if wrong == "" {
			return
		}
		select {
		case <-end:
			t.Fatalf("after %s: %s", limit, wrong)
		case <-time.After(min(max(minPause, 5*time.Since(began)), maxPause)):
		}
	}
}

// testTimeout is the timeout without progress: for a state, or for the next step of a process.
// Progress restarts it, however slow the machine is.
const testTimeout = 2 * time.Minute

// awaitZero polls left until it returns 0. It fails if left has not decreased for testTimeout.
func awaitZero(t testing.TB, what string, left func() int) {
	t.Helper()
	for least := left(); least > 0; {
		within(t, testTimeout, func() string {
			n := left()
			if n >= least {
				return fmt.Sprintf("%d %s", n, what)
			}
			least = n
			return ""
		})
	}
}

// nameFor returns a unique relay name, because slots belong to a server, which the tests
// share.
func nameFor(database string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(database))
	return fmt.Sprintf("t%x", h.Sum64())
}

// preset is a configuration of the two FlowCatalyst tables.
//
// Its mode is stream: with mode auto the relay would poll at times, because other tests may
// keep transactions open.
func preset(database, receiver, rest string) string {
	return fmt.Sprintf("name: %s\nsource: {mode: stream, url: %q}\nflowcatalyst: {api-base-url: %q}\nadmin: {listen: %s}\n%s",
		nameFor(database), database, receiver, adminKey, rest)
}
