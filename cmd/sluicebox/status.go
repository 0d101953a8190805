package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// statusTimeout limits one status. Counts of FAILED rows have a shorter limit.
	statusTimeout = 15 * time.Second
	// defaultWatchInterval and minWatchInterval are intervals of --watch.
	defaultWatchInterval = 2 * time.Second
	minWatchInterval     = 100 * time.Millisecond
)

// statusCommand is `sluicebox status`.
type statusCommand struct {
	relayFlags
	Watch watchFlag `placeholder:"2s" help:"Repeat until Ctrl-C, every 2s or at the interval --watch=TIME."`
	JSON  bool      `name:"json" help:"Print JSON."`
}

// watchFlag is the interval of --watch, or 0 for a single status. Its value is optional.
type watchFlag time.Duration

// IsBool makes the value optional.
func (*watchFlag) IsBool() bool { return true }

// Decode reads the value, if there is one.
func (w *watchFlag) Decode(ctx *kong.DecodeContext) error {
	*w = watchFlag(defaultWatchInterval)
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	text := ctx.Scan.Pop().String()
	every, err := time.ParseDuration(text)
	if err != nil || every < minWatchInterval {
		return fmt.Errorf("invalid interval %q: want one such as 2s, at least %s", text, minWatchInterval)
	}
	*w = watchFlag(every)
	return nil
}

// Run shows the status of the relay.
func (c *statusCommand) Run(ctx context.Context, p *program) error {
	client, _, err := c.dial(p)
	if err != nil {
		return err
	}
	defer client.Close()
	if c.Watch > 0 {
		return c.watch(ctx, p, client)
	}

	s, err := fetchStatus(ctx, client)
	if err != nil {
		return err
	}

	if err := c.show(p, s); err != nil {
		return err
	}
	if !s.Ready {
		return notReadyError(s)
	}

	return nil
}

// fetchStatus requests one status.
func fetchStatus(ctx context.Context, client *admin.Client) (*admin.RelayStatus, error) {
	short, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := client.Status(short, true)
	switch {
	case err == nil:
		return &s, nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return nil, &commandError{code: exitFailed, problem: fmt.Sprintf("no response from the relay within %s", statusTimeout)}
	}
	return nil, relayFailure(err)
}

func (c *statusCommand) show(p *program, s *admin.RelayStatus) error {
	if c.JSON {
		return p.json(s)
	}
	text := statusText(s, time.Now())
	if width := terminalWidth(p.stdout); width > 0 {
		text = cutLines(text, width)
	}
	_, err := io.WriteString(p.stdout, text)
	return err
}

// notReadyError names the failing checks.
func notReadyError(s *admin.RelayStatus) error {
	var failing []string
	for _, c := range s.Checks {
		if !c.OK {
			failing = append(failing, oneLine(c.Name+": "+c.Detail))
		}
	}
	return &commandError{code: exitFailed, problem: "the relay is not ready: " + strings.Join(failing, "; ")}
}

// watch shows the status repeatedly until the context ends. It keeps trying if the relay
// does not respond, because the relay may come back, and ends if the relay refuses the
// request.
func (c *statusCommand) watch(ctx context.Context, p *program, client *admin.Client) error {
	screen := newScreen(p.stdout)
	if c.JSON {
		screen = nil
	}

	for {
		s, err := fetchStatus(ctx, client)
		if ctx.Err() != nil {
			return nil
		}
		var fault *commandError
		switch {
		case err == nil && screen != nil:
			err = screen.draw(statusText(s, time.Now()))
		case err == nil && c.JSON:
			err = c.show(p, s)
		case err == nil:
			_, err = io.WriteString(p.stdout, statusText(s, time.Now())+"\n")
		case !errors.As(err, &fault) || fault.code != exitFailed:
			return err
		case screen != nil:
			err = screen.draw(time.Now().Format(time.TimeOnly) + "  " + fault.problem + "\n")
		default:
			p.printProblem(fault.problem, "")
			err = nil
		}
		if err != nil {
			return err
		}
		if backoff.Sleep(ctx, time.Duration(c.Watch)) != nil {
			return nil
		}
	}
}
