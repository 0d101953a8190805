package quickstart

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxWriters       = 8
	maxRatePerWriter = 100 // rows per second; a higher rate gets another writer
)

// load writes the orders.
type load struct {
	db     database
	oracle *oracle
	opts   Options
	begin  time.Time // when run started to write, with all writers connected
}

// writerCount returns the number of writing sessions. No two write to the same group,
// so the commit order of a group is known.
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

// run commits orders for Options.For, or until the context ends. An order that falls
// due while the database is slow is written late, or skipped once the time is over.
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

// write is the i-th of n writers. Orders fall due at even intervals. Each writer
// commits every n-th order, for its groups in turn.
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

// commit writes the next order of a group. The end of the context does not interrupt a
// transaction that has begun.
func (l *load) commit(ctx context.Context, s session, g int, timed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	o := l.oracle.begin(g)
	if err := s.commit(ctx, o); err != nil {
		return fmt.Errorf("writer: %w", err)
	}
	l.oracle.committed(o, time.Now(), timed)
	return nil
}
