package quickstart

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxWriters       = 8
	maxRatePerWriter = 100 // rows a second, above which another writer helps
)

// load is the writing of orders.
type load struct {
	db     database
	oracle *oracle
	opts   Options
	begin  time.Time // of run, once its writers are connected
}

// writerCount is how many sessions write. Each has groups of its own, so that it
// knows the order in which their rows are committed.
func (l *load) writerCount() int {
	return min(l.opts.Groups, 1+l.opts.Rate/maxRatePerWriter, maxWriters)
}

// commitFirst commits one order.
func (l *load) commitFirst(ctx context.Context) error {
	s, err := l.db.session(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	return l.commit(ctx, s, 0, false)
}

// run commits orders for as long as the options say, or until the context ends.
// An order that falls due while the database is slow is written as soon as it
// can be, and left out if the time is over by then.
func (l *load) run(ctx context.Context) error {
	sessions := make([]session, 0, l.writerCount())
	defer func() {
		for _, s := range sessions {
			s.close()
		}
	}()
	for range l.writerCount() {
		s, err := l.db.session(ctx)
		if err != nil {
			return err
		}
		sessions = append(sessions, s)
	}
	l.begin = time.Now()
	work, ctx := errgroup.WithContext(ctx)
	for i, s := range sessions {
		work.Go(func() error { return l.write(ctx, s, i, len(sessions)) })
	}
	return work.Wait()
}

// write is the i-th of n writers: of all orders, which fall due in even steps, it
// commits each n-th, for its groups in turn.
func (l *load) write(ctx context.Context, s session, i, n int) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for k, g := i, i; ; k, g = k+n, g+n {
		if g >= l.opts.Groups {
			g = i
		}
		due := l.begin.Add(time.Duration(k) * time.Second / time.Duration(l.opts.Rate))
		if end := l.begin.Add(l.opts.For); !due.Before(end) || !time.Now().Before(end) {
			return nil
		}
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if err := l.commit(ctx, s, g, true); err != nil {
			return err
		}
	}
}

// commit writes the next order of a group. A transaction that has begun is not
// torn by the end of the context.
func (l *load) commit(ctx context.Context, s session, g int, timed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	o := l.oracle.begin(g)
	if err := s.commit(ctx, o); err != nil {
		return fmt.Errorf("the writer: %w", err)
	}
	l.oracle.committed(o, time.Now(), timed)
	return nil
}
