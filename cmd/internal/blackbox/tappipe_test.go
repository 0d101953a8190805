package blackbox

import (
	"os"
	"os/exec"
	"testing"
)

// A tap whose stdout is closed ends silently, even without new rows.
func TestTapWithClosedStdout(t *testing.T) {
	t.Parallel()
	source, _ := seedFile(t)
	config := preset(source, "http://127.0.0.1:1", "")
	if _, stderr, code := command(t, nil, "init", "-c", configFile(t, config)); code != 0 {
		t.Fatal(stderr)
	}
	person, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = person.Close() }()
	p := &relay{t: t, ended: make(chan struct{}), grown: make(chan struct{})}
	p.cmd = exec.Command(binary, "tap", "-c", configFile(t, config))
	p.cmd.Env, p.cmd.Stdout = environment(), out
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.watch(pipe)
	t.Cleanup(p.kill)
	_ = out.Close()
	p.waitFor(tapReads)
	_ = person.Close()
	if code := p.exitCode(); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, p.said())
	}
}
