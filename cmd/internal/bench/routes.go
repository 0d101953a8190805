package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// statementCounter is a database that counts the statements of the relay.
type statementCounter interface {
	// relayStatements returns how many statements the relay has run since countStatements.
	relayStatements(ctx context.Context) (int, error)
}

// withRoutes returns a run in which each row takes that many routes. The first goes to the
// measured receiver, the others to receivers that accept all rows. If dead, nothing listens at the
// address of the last one.
func withRoutes(routes int, dead bool, run func(context.Context, *bench) (figures, error)) func(context.Context, *bench) (figures, error) {
	return func(ctx context.Context, b *bench) (f figures, err error) {
		turn := *b
		turn.routes = []config.Sink{{}} // of the measured receiver, which does not exist yet
		for i := 1; i < routes; i++ {
			to, err := startReceiver(ctx, b.opts.Delay)
			if err != nil {
				return nil, err
			}
			turn.routes = append(turn.routes, to.sink)
			if dead && i == routes-1 {
				if err := to.stop(); err != nil {
					return nil, err
				}
				continue
			}
			defer func() { err = errors.Join(err, to.stop()) }()
		}
		return run(ctx, &turn)
	}
}

// setRoutes makes the outbox send its rows by the routes of the turn, if there are any. The first
// takes the place of the outbox's sink.
func (b *bench) setRoutes(s *config.Settings) {
	if len(b.routes) == 0 {
		return
	}
	o := &s.Outboxes[0]
	for i, sink := range b.routes {
		name := receiverSink
		if i > 0 {
			name = fmt.Sprint(receiverSink, i)
			sink.ErrorDetail, sink.Delivery = s.Sinks[receiverSink].ErrorDetail, s.Sinks[receiverSink].Delivery
			s.Sinks[name] = sink
		}
		o.Routes = append(o.Routes, config.Route{Name: name, Sink: name})
	}
	o.Sink = ""
}

// countedLatency is relayLatency, and counts the statements for each row where the server does.
func countedLatency(ctx context.Context, b *bench) (figures, error) {
	return b.withNewDatabase(ctx, func(p *benchDatabase, to *receiver) (figures, error) {
		return b.withRelay(ctx, p, to, func(ctx context.Context) (figures, error) {
			if err := b.warmUp(ctx, p, to); err != nil {
				return nil, err
			}
			counter, counted := p.database.(statementCounter)
			counted = counted && p.countStatements(ctx) == nil
			before := p.rowsWritten
			all, err := b.latencies(ctx, p, to, b.opts.Duration)
			if err != nil {
				return nil, err
			}
			f := latencyFigures(all)
			if !counted {
				b.missingMeasures[statementsPerRow] = true
				return f, nil
			}
			n, err := counter.relayStatements(ctx)
			f[statementsPerRow] = float64(n) / float64(p.rowsWritten-before)
			return f, err
		})
	})
}
