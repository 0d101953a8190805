package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
	sqlitestore "github.com/sluicebox/sluicebox/store/sqlite"
)

const (
	// pollInterval is the interval of checks with a watch, and blindPollInterval without
	// one.
	pollInterval      = time.Second
	blindPollInterval = 25 * time.Millisecond
	// After an append the reader checks until it sees a commit. It checks spinPolls times
	// without a pause, which takes about 50 µs, because timers of an idle Go program have a
	// resolution of 1 ms. Then it waits minPollWait and doubles the wait up to maxPollWait.
	// A commit that syncs the WAL takes as long as the disk needs.
	spinPolls   = 8
	minPollWait = 100 * time.Microsecond
	maxPollWait = 250 * time.Millisecond
)

// Run sends the rows that the triggers logged. It ends with a *capture.LostError if the log
// was recreated or lacks a trigger.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if err := s.resume.RefuseSeparate("log of " + s.path); err != nil {
		return err
	}
	if s.log == "" {
		return errors.New("run source: Open was not called")
	}
	until := int64(math.MaxInt64)
	if span.Until != "" {
		var err error
		if until, err = parsePosition(span.Until); err != nil {
			return err
		}
	}

	from, err := parsePosition(s.resume.Start(s, span.From))
	if err != nil {
		return err
	}

	conn, err := sqlitestore.Dial(ctx, s.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	work, ctx := errgroup.WithContext(ctx)
	trimming, endTrimming := context.WithCancel(ctx)
	work.Go(func() error { return s.trim(trimming) })
	work.Go(func() error {
		defer endTrimming()
		r := &run{source: s, conn: conn, reader: newLogReader(s, conn), out: out, last: from, until: until}
		return r.follow(ctx)
	})
	if err := work.Wait(); err != nil || span.Until == "" {
		return err
	}
	return nil
}

// run is the state of one Run.
type run struct {
	source *Source
	conn   *sqlitestore.Conn
	reader *logReader
	out    chan<- capture.Batch
	last   int64 // last number that was read and sent
	until  int64

	watch         *watch
	version       int64 // last data_version seen; SQLite counts from 1
	schema        int64
	fileCheckedAt time.Time // last check that the path still names the open file
}

func (r *run) follow(ctx context.Context) error {
	if err := r.checkLog(ctx); err != nil {
		return err
	}
	r.watch = newWatch(r.conn.Path()) // before the first read, so that no append is missed
	defer r.watch.close()
	r.source.resume.Connected()
	for {
		if err := r.wait(ctx); err != nil {
			return err
		}
		if err := r.checkSchema(ctx); err != nil {
			return err
		}
		if err := r.catchUp(ctx); err != nil || r.last >= r.until {
			return err
		}
	}
}

// catchUp sends all rows of the log.
func (r *run) catchUp(ctx context.Context) error {
	before := r.last
	for more := true; more && r.last < r.until; {
		p, err := r.reader.read(ctx, r.last, r.until)
		if err != nil {
			return r.explainReadError(ctx, err)
		}
		if err := r.send(ctx, &p); err != nil {
			return err
		}
		r.last, more = p.last, p.more
	}
	if r.last > before {
		return nil
	}

	// A reset counter would assign numbers again, and the reader would skip those rows.
	n, exists, err := sqlitestore.LogCounter(ctx, r.conn, r.source.cfg.Name)
	switch {
	case err != nil:
		return fmt.Errorf("read log: %w", sqlitestore.Explain(err))
	case !exists:
		return &capture.LostError{Reason: "log was dropped"}
	case n < r.last:
		return fault.Lostf("log counter is %d, was %d: it was reset", n, r.last)
	}
	return nil
}

// explainReadError returns a *capture.LostError if the log was dropped since the last check,
// otherwise err.
func (r *run) explainReadError(ctx context.Context, err error) error {
	if lost := r.checkLog(ctx); errors.As(lost, new(*capture.LostError)) {
		return lost
	}
	return err
}

func (r *run) send(ctx context.Context, p *page) error {
	b := p.batch
	if !r.source.resume.Trim(&b) {
		return nil
	}
	n, at := len(b.Items), b.Position
	r.source.acks.Offer(at)
	select {
	case r.out <- b:
		r.source.resume.Sent(n, at)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait returns once another connection has committed since the previous call. It starts with
// the short intervals, because the signal for a commit that is not readable yet may have
// been consumed before.
func (r *run) wait(ctx context.Context) error {
	idle := pollInterval
	if r.watch == nil {
		idle = blindPollInterval
	}

	timer := time.NewTimer(idle)
	defer timer.Stop()
	wait := minPollWait // the next wait after an append; 0 long after it
	for spins := 0; ; {
		if changed, err := r.changed(ctx); err != nil || changed {
			return err
		}
		switch {
		case spins > 0:
			spins--
			runtime.Gosched()
			continue
		case wait > 0:
			timer.Reset(wait)
		default:
			timer.Reset(idle)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.watch.appended():
			wait, spins = minPollWait, spinPolls
		case now := <-timer.C:
			if wait *= 2; wait > maxPollWait {
				wait = 0
			}
			if now.Sub(r.fileCheckedAt) < pollInterval {
				continue
			}
			r.fileCheckedAt = now
			if err := r.conn.Replaced(); err != nil {
				return err
			}
		}
	}
}

// changed reports whether another connection has committed since the last call.
func (r *run) changed(ctx context.Context) (bool, error) {
	version, err := r.readPragma(ctx, "PRAGMA data_version")
	changed := version != r.version
	r.version = version
	return changed, err
}

// checkSchema checks the triggers if the schema has changed.
func (r *run) checkSchema(ctx context.Context) error {
	version, err := r.readPragma(ctx, "PRAGMA schema_version")
	if err != nil || version == r.schema {
		return err
	}
	return r.checkLog(ctx)
}

// readPragma reads a number from the file header. It is too quick to need a goroutine that
// waits for the context.
func (r *run) readPragma(ctx context.Context, pragma string) (n int64, err error) {
	err = r.conn.Query(context.WithoutCancel(ctx), pragma, nil, func(row []driver.Value) error {
		n, _ = row[0].(int64)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read log: %w", sqlitestore.Explain(err))
	}
	return n, nil
}

// checkLog checks that the log is still the log of Open and complete.
func (r *run) checkLog(ctx context.Context) error {
	var st logState
	err := r.conn.Read(ctx, func(ctx context.Context) (err error) {
		if r.schema, err = r.readPragma(ctx, "PRAGMA schema_version"); err == nil {
			st, err = r.source.inspectLog(ctx, r.conn)
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("check log: %w", sqlitestore.Explain(err))
	case st.lossReason != "":
		return &capture.LostError{Reason: st.lossReason}
	case st.id != r.source.log:
		return fault.Lostf("log is %s, was %s: rows may be missing in between", st.id, r.source.log)
	}
	return nil
}

// Tap sends the rows that commit from now on, beside a running relay. It reads the same log
// and writes nothing. It calls begun once when it starts reading. It requires the log and
// its triggers, and creates none.
//
// Tap may be called once, in place of Open and Run, and there is nothing to acknowledge. A
// row is sent as it is when it is read. Tap does not send a row that the relay delivered and
// deleted before Tap read it. It returns when the context ends (its error), or with any
// error of Run.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	conn, err := sqlitestore.DialAsIs(ctx, s.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	st, err := s.readLogState(ctx, conn)
	switch {
	case err != nil:
		return err
	case st.lossReason != "":
		return &store.SetupError{Problem: "log is incomplete: " + st.lossReason, Remedy: "run `sluicebox init`"}
	}
	if err := s.resetState(st.id, formatPosition(st.counter)); err != nil {
		return err
	}
	begun()
	r := &run{source: s, conn: conn, reader: newLogReader(s, conn), out: out, last: st.counter, until: math.MaxInt64}
	return r.follow(ctx)
}
