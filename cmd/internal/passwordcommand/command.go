// Package passwordcommand runs a program that prints the password of a database, for example an IAM
// token that expires.
package passwordcommand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// timeout is how long the program may run. A server waits longer for the login: PostgreSQL a minute
	// (authentication_timeout), MySQL 10 s (connect_timeout) after the program has ended.
	timeout = 10 * time.Second
	// pipeTimeout is how long its children may keep its output open after its end.
	pipeTimeout = time.Second
	// parallel is how many programs run at a time: all connections are new when a server comes back.
	parallel = 8
	// maxOutput is far more than a token has.
	maxOutput = 64 << 10
	// ownVariables is the prefix of the relay's variables, which may hold the secrets of other servers.
	ownVariables = "SLUICEBOX_"
)

// Limit limits how many programs run at a time. Its commands share it.
type Limit struct{ runs *semaphore.Weighted }

// NewLimit returns a limit.
func NewLimit() *Limit { return &Limit{semaphore.NewWeighted(parallel)} }

// Command is a program that prints a password. It implements store.Passworder.
type Command struct {
	limit *Limit
	key   string
	argv  []string
}

// Command returns a command with its arguments. Errors name the key of the configuration.
func (l *Limit) Command(key string, argv []string) *Command { return &Command{l, key, argv} }

// Password runs the program once and returns what it prints, without the line break at the end. Errors
// show neither what it prints nor its arguments. It has all variables but those of the relay. If it
// takes too long, it is killed with its process group, so that no child of a shell survives.
func (c *Command) Password(ctx context.Context) (string, error) {
	if err := c.limit.runs.Acquire(ctx, 1); err != nil {
		return "", fmt.Errorf("%s: not started, because others run: %w", c.key, err)
	}
	defer c.limit.runs.Release(1)
	running, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var out limited
	cmd := exec.CommandContext(running, c.argv[0], c.argv[1:]...) //nolint:gosec // the operator's own command
	cmd.Stdout, cmd.WaitDelay = &out, pipeTimeout
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, ownVariables) })
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return killGroup(cmd.Process) }
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		_ = killGroup(cmd.Process) // a child holds the output
	}
	password := string(bytes.TrimRight(out.text.Bytes(), "\r\n"))
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: ended with the connection attempt: %w", c.key, ctx.Err())
	case running.Err() != nil:
		return "", fmt.Errorf("%s: no end within %s; run it by hand as the relay's user", c.key, timeout)
	case err != nil:
		return "", fmt.Errorf("%s: %w; run it by hand as the relay's user", c.key, err)
	case out.full:
		return "", fmt.Errorf("%s: prints more than %d bytes; it must print the password alone", c.key, maxOutput)
	case password == "":
		return "", fmt.Errorf("%s: prints nothing; it must print the password on standard output", c.key)
	}
	return password, nil
}

// limited keeps the first maxOutput bytes.
type limited struct {
	text bytes.Buffer
	full bool
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	room := maxOutput - l.text.Len()
	l.full = l.full || len(p) > room
	l.text.Write(p[:min(len(p), room)])
	return len(p), nil
}
