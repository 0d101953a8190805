package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxProfileTime is the maximum duration of a CPU profile.
const maxProfileTime = 5 * time.Second

// profile starts to profile a relay and to count the server's statements, in the first round
// only. For a floor it only counts statements. The returned function waits for the profiles
// and writes them.
func (b *bench) profile(ctx context.Context, p *benchDatabase, pr *process) (wait func() error) {
	if b.opts.Profile == "" || b.round > 0 {
		return func() error { return nil }
	}
	uncounted := p.countStatements(ctx)
	if uncounted != nil {
		b.logf("statements not counted: %v", uncounted)
	}

	done := make(chan error, 1)
	go func() { done <- b.processor(ctx, pr) }()
	return func() error {
		err := <-done
		if pr.admin != "" {
			for _, kind := range []string{"allocs", "mutex", "goroutine"} {
				err = errors.Join(err, b.fetch(ctx, pr, "/debug/pprof/"+kind, kind))
			}
		}
		if uncounted == nil {
			err = errors.Join(err, b.writeStatements(ctx, p, pr))
		}
		return err
	}
}

// processor takes a CPU profile of the relay.
func (b *bench) processor(ctx context.Context, pr *process) error {
	if pr.admin == "" {
		return nil
	}
	d := maxProfileTime
	if b.opts.Duration > 0 {
		d = max(time.Second, min(d, b.opts.Duration))
	}
	return b.fetch(ctx, pr, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(d.Seconds())), "cpu")
}

// fetch writes one profile of the relay to the folder.
func (b *bench) fetch(ctx context.Context, pr *process, path, kind string) error {
	resp, err := pr.get(ctx, path)
	if err != nil {
		return fmt.Errorf("profile relay: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile relay: %s returned %s", path, resp.Status)
	}
	return b.save(kind+".pprof", resp.Body)
}

func (b *bench) save(name string, from io.Reader) error {
	if err := os.MkdirAll(b.opts.Profile, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(b.opts.Profile, b.opts.Scenario+"-"+name))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// writeStatements writes the statistics of the database's statements.
func (b *bench) writeStatements(ctx context.Context, p *benchDatabase, pr *process) error {
	text, err := p.statements(ctx)
	if err != nil {
		return fmt.Errorf("read statements: %w", err)
	}
	side := relaySide
	if pr.admin == "" {
		side = floorSide
	}
	return b.save(side+"-statements.txt", strings.NewReader(text))
}
