package mysql

import (
	"cmp"
	"context"
	"errors"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Run streams the binlog until the context or the span ends, or with one of these errors:
//
//   - *capture.LostError: the server has purged the log behind the position, it is
//     another server or was restored, the binlog lacks rows or holds a row that cannot be
//     relayed, or it is unreadable at one position.
//   - *capture.NoStreamError: the role may no longer stream, a setting no longer allows
//     it, or another replica uses the relay's server id.
//   - *store.SetupError: the table has lost a column that the layout names.
//   - any other error: the connection was lost.
//
// If the receiver pauses for more than 10 s, Run closes the connection and reopens it
// when the receiver returns. That is not an error.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if s.server == nil {
		return errors.New("run source: Open was not called")
	}
	var until mysql.GTIDSet
	if span.Until != "" {
		end, err := parsePosition(span.Until)
		if err != nil {
			return err
		}
		until = end.set
	}
	return s.runFrom(ctx, span.From, until, s.cfg.ServerID, out)
}

// runFrom reads the binlog from a position up to a set, or forever if until is nil, with
// a new dump after each pause. A server id of 0 selects a random one.
func (s *Source) runFrom(ctx context.Context, position store.Position, until mysql.GTIDSet, serverID uint32, out chan<- capture.Batch) error {
	progress := false
	for {
		from, err := s.resumePosition(position)
		if err != nil {
			return err
		}

		if until != nil && contains(from.set, until) {
			return nil
		}
		r := &dumpRun{source: s, serverID: cmp.Or(serverID, anyServerID()), from: from, until: until, out: out}
		err = r.read(ctx)
		progress = progress || r.progress
		switch {
		case errors.Is(err, errSpanEnd):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, errPaused):
			return s.classifyEnd(ctx, err, progress)
		}
	}
}

// resumePosition returns the position to read from.
func (s *Source) resumePosition(from store.Position) (binlogPosition, error) {
	at, err := parsePosition(s.resume.Start(s, from))
	if err != nil {
		return binlogPosition{}, err
	}
	at.resolveFlavour(s.server.flavour)
	return at, nil
}

// dumpRun is one dump.
type dumpRun struct {
	source       *Source
	serverID     uint32
	from         binlogPosition
	until        mysql.GTIDSet
	out          chan<- capture.Batch
	onStart      func() // called once the server sends; may be nil
	snapshotMark string // a snapshot's marker to forward; may be ""

	progress bool // it sent something new
}

// read sends the batches of a dump until the context ends, the span ends (errSpanEnd),
// the receiver pauses (errPaused, after the waiting batch was received) or the connection
// is lost.
func (r *dumpRun) read(ctx context.Context) error {
	s := r.source
	asm := newAssembler(s.server, &s.cfg, binlogPosition{set: r.from.set.Clone(), coords: r.from.coords})
	asm.tx.MaxPayload = s.resume.MaxPayload
	defer asm.close()
	d := &dump{}
	st := &stream{src: s, ctx: ctx, dump: d, asm: asm, out: r.out, until: r.until, onStart: r.onStart}
	asm.emit, asm.snapshotMark, asm.watching, asm.since = st.send, r.snapshotMark, s.watching, s.since
	asm.refresh = func(t *table) error { return s.control.refresh(ctx, t) }

	if s.checkUnlogged {
		asm.unlogged.missingRowsFrom = s.missingRowsFrom
		asm.unlogged.findWriters = func() (*indirectWriters, error) { return s.control.findWriters(ctx, s.server.tables) }
	}

	s.server.tables.charsets.load = func(name string) (*charset, error) { return s.control.loadCharset(ctx, name) }
	err := s.openDump(ctx, d, s.server, r.serverID, r.from, st)
	if err != nil {
		return err
	}

	err = d.wait(ctx)
	d.close() // from here on the stream belongs to this goroutine
	if errors.Is(err, errPaused) {
		if sendErr := st.sendPending(); sendErr != nil {
			err = sendErr
		}
	}

	r.progress = st.progress
	return s.explainDump(s.server, d, err)
}

// Tap sends the rows that commit from now on. It runs beside a relay and changes nothing
// that the relay uses: it reads the binlog with a random server id. begun is called once
// when the stream starts.
//
// Tap may be called once, in place of Open and Run, and nothing is acknowledged. It
// returns the context's error when the context ends, or any error of Open and Run. It
// does not reconnect, because rows committed meanwhile would be missing.
func (s *Source) Tap(ctx context.Context, out chan<- capture.Batch, begun func()) error {
	sv, err := s.ready(ctx)
	if err != nil {
		return err
	}

	now, err := s.control.executedGTIDs(ctx, sv)
	if err != nil {
		return err
	}

	from := binlogPosition{set: now}
	s.resetState(sv, from.format(), from)
	id := anyServerID()
	for {
		r := &dumpRun{source: s, serverID: id, from: from, out: out, onStart: begun}
		err := r.read(ctx)
		if !errors.Is(err, errPaused) {
			return s.explainMissingColumns(ctx, err)
		}
		if from, err = s.resumePosition(from.format()); err != nil {
			return err
		}
		begun = nil
	}
}
