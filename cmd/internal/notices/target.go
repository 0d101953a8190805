package notices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// maxQueue limits the notices that wait for a target. Beyond it the oldest is dropped.
	maxQueue = 100

	// maxTries is the number of attempts to deliver a notice to the webhook, with waits from minRetry
	// to maxRetry between them: four minutes in all.
	maxTries = 9
	minRetry = time.Second
	maxRetry = time.Minute

	// maxOutput limits the output of a failed command in the log.
	maxOutput = 300
)

// message is an encoded notice.
type message struct {
	id   string
	text []byte
}

// target delivers notices, one after the other.
type target struct {
	name    string
	deliver func(ctx context.Context, m message) error
	close   func()
	log     *slog.Logger
	sent    func(target, outcome string)

	mu     sync.Mutex
	queue  []message
	ended  bool
	change chan struct{}
}

// Check reports a file of the webhook that is unusable. c may be nil.
func Check(c *Config) error {
	targets, err := New(Options{}).newTargets(c)
	for _, t := range targets {
		t.close()
	}
	return err
}

// newTargets returns the targets of a configuration. They connect with the first notice.
func (n *Notifier) newTargets(c *Config) (all []*target, err error) {
	add := func(name string, deliver func(context.Context, message) error, closed func()) {
		all = append(all, &target{name: name, deliver: deliver, close: closed, log: n.opt.Log, sent: n.opt.Sent, change: make(chan struct{}, 1)})
	}
	if c == nil {
		return nil, nil
	}
	if c.Webhook != nil {
		cfg := c.Webhook.sink()
		cfg.UserAgent = n.opt.Agent
		to, err := webhook.New(cfg)
		if err != nil {
			return nil, &store.SetupError{Problem: fmt.Sprintf("notices.webhook: %v", err)}
		}
		add("webhook", func(ctx context.Context, m message) error { return post(ctx, to, m) }, to.Close)
	}
	if c.Command != nil {
		own := *c.Command
		add("command", func(ctx context.Context, m message) error { return own.run(ctx, m) }, func() {})
	}
	return all, nil
}

// add queues a notice.
func (t *target) add(m message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) >= maxQueue {
		t.queue = t.queue[1:]
		t.count("dropped")
	}
	t.queue = append(t.queue, m)
	t.signal()
}

// end ends run once the queue is empty.
func (t *target) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.signal()
}

func (t *target) signal() {
	select {
	case t.change <- struct{}{}:
	default:
	}
}

func (t *target) count(outcome string) {
	if t.sent != nil {
		t.sent(t.name, outcome)
	}
}

// take returns the next notice. ok is false if there is none.
func (t *target) take() (m message, ok, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return message{}, false, t.ended
	}
	m, t.queue = t.queue[0], t.queue[1:]
	return m, true, false
}

// run delivers notices until end or until the context ends.
func (t *target) run(ctx context.Context) {
	defer t.close()
	for {
		m, ok, ended := t.take()
		switch {
		case ended:
			return
		case !ok:
			select {
			case <-ctx.Done():
				return
			case <-t.change:
			}
			continue
		}
		if err := t.deliver(ctx, m); err != nil {
			t.count("failed")
			t.log.Warn("notice not delivered", "to", t.name, "id", m.id, "error", err)
			continue
		}
		t.count("sent")
	}
}

// post sends a notice, and repeats failed attempts.
func post(ctx context.Context, to *webhook.Sink, m message) error {
	retry := backoff.Doubling{Min: minRetry, Max: maxRetry}
	for try := 1; ; try++ {
		res := to.Deliver(ctx, []sink.Message{{ID: m.id, Payload: m.text, Attempt: try}})
		switch out := res.At(0); {
		case out.Class == sink.Delivered:
			return nil
		case out.Class == sink.Rejected || try == maxTries || ctx.Err() != nil:
			return errors.New(out.Detail)
		}
		if err := backoff.Sleep(ctx, max(retry.Next(), min(res.RetryAfter, maxRetry))); err != nil {
			return fmt.Errorf("relay stopped after attempt %d: %s", try, res.At(0).Detail)
		}
	}
}

// run runs the command with a notice on its standard input. It gets the environment of the relay
// without the variables that configure it, because they may hold secrets.
func (c *Command) run(ctx context.Context, m message) error {
	limit := timeout(c.Timeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...) //nolint:gosec // the operator's own program
	cmd.WaitDelay = time.Second
	cmd.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "SLUICEBOX_") })
	cmd.Stdin = bytes.NewReader(m.text)
	var output limited
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("run %s: no end within %s", c.Argv[0], limit)
	}
	return fmt.Errorf("run %s: %w: %s", c.Argv[0], err, strings.TrimSpace(output.String()))
}

// limited keeps the beginning of an output.
type limited struct{ bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), maxOutput-min(maxOutput, l.Len()))])
	return len(p), nil
}
