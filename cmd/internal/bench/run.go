package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// bench is one benchmark from start to end.
type bench struct {
	opts            Options
	env             Environment
	scenario        *scenario
	folder          string // configurations and logs
	server          server
	fullDatabase    *benchDatabase  // the filled table of big-table
	file            *relayFile      // the configuration of the side's relay, nil for the options
	routes          []config.Sink   // of the side's outbox; none without routes
	missingMeasures map[string]bool // measures that the server cannot provide
	round           int
}

// figures are the results of one turn of a side, by measure.
type figures map[string]float64

func (b *bench) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.env.Stderr, format+"\n", args...) // there is no other place to report it
}

// run measures the sides alternately. Every other round runs them in reverse order, so that
// no side has an advantage.
func (b *bench) run(ctx context.Context) (res *Result, err error) {
	if b.folder, err = os.MkdirTemp("", "sluicebox-bench-"); err != nil {
		return nil, fmt.Errorf("create temporary folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	if b.opts.Compare.given() {
		if b.scenario, err = b.comparing(b.scenario, b.opts.Compare); err != nil {
			return nil, err
		}
	}
	if b.server, err = connectServer(ctx, b.opts.Source); err != nil {
		return nil, err
	}
	defer b.server.close()
	for _, s := range b.scenario.sides {
		if s.setUp == nil {
			continue
		}
		tearDown, err := s.setUp(ctx, b)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, tearDown(ctx)) }()
	}

	began, before := time.Now(), processorTicks()
	measured := make([][]figures, len(b.scenario.sides))
	for b.round = range b.opts.Repeat {
		order := make([]int, len(b.scenario.sides))
		for i := range order {
			order[i] = i
		}
		if b.round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			s := &b.scenario.sides[i]
			turn := *b
			turn.use(s.file)
			f, err := s.run(ctx, &turn)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			b.logf("%d of %d  %-20s %s", b.round+1, b.opts.Repeat, s.name, f)
			measured[i] = append(measured[i], f)
		}
	}
	return b.result(measured, time.Since(began), processorTicks().since(before)), nil
}

func (f figures) String() string {
	names := make([]string, 0, len(f))
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %s", name, Number(f[name]))
	}
	return strings.Join(names, ", ")
}

// withNewDatabase runs a turn with a new database and a receiver.
func (b *bench) withNewDatabase(ctx context.Context, turn func(*benchDatabase, *receiver) (figures, error)) (f figures, err error) {
	p, err := b.newBenchDatabase(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.drop(ctx)) }()
	return b.withReceiver(ctx, func(to *receiver) (figures, error) { return turn(p, to) })
}

// withReceiver runs a turn with a receiver.
func (b *bench) withReceiver(ctx context.Context, turn func(*receiver) (figures, error)) (f figures, err error) {
	if b.opts.Sink != "" {
		return b.withTopic(ctx, turn)
	}
	to, err := startReceiver(ctx, b.opts.Delay)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, to.stop()) }()
	return turn(to)
}
