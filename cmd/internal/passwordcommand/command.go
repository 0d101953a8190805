// Package passwordcommand runs a program that prints the password of a database, for example an IAM
// token that expires.
package passwordcommand

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"time"
)

const (
	// timeout is how long the program may run. A server waits longer for the login: PostgreSQL a minute
	// (authentication_timeout), MySQL 10 s (connect_timeout) after the program has ended.
	timeout = 10 * time.Second
	// pipeTimeout is how long its children may keep its output open after its end.
	pipeTimeout = time.Second
	// maxOutput is far more than a token has.
	maxOutput = 64 << 10
)

// Command is a program that prints a password. It implements store.Passworder.
type Command struct {
	key  string
	argv []string
}

// New returns a command with its arguments. Errors name the key of the configuration.
func New(key string, argv []string) *Command { return &Command{key, argv} }

// Password runs the program once and returns what it prints, without the line break at the end. Errors
// show neither what it prints nor its arguments.
func (c *Command) Password(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var out limited
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...) //nolint:gosec // the operator's own command
	cmd.Stdout, cmd.WaitDelay = &out, pipeTimeout
	err := cmd.Run()
	password := string(bytes.TrimRight(out.text.Bytes(), "\r\n"))
	switch {
	case ctx.Err() != nil:
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
