package mysql

import (
	"cmp"
	"context"
	"errors"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Run streams the binlog. A lost connection ends it with an ordinary error. A
// *capture.LostError: the server has purged what follows, it is another one or was
// restored, its log lacks rows or holds one that cannot be relayed, or the log at
// one place cannot be read at all. A *capture.NoStreamError: the role may not
// stream any more, a setting no longer allows it, or somebody else uses the
// relay's server id. A *store.SetupError: the table has lost a column that the
// layout names.
//
// A receiver that pauses for more than 10 s costs the connection; it is opened
// again when the receiver is back, and no error.
func (s *Source) Run(ctx context.Context, span capture.Span, out chan<- capture.Batch) error {
	if s.server == nil {
		return errors.New("a source runs only after Open")
	}
	var until gtidSet
	if span.Until != "" {
		end, err := parsePosition(span.Until)
		if err != nil {
			return err
		}
		until = end.set
	}
	return s.runFrom(ctx, span.From, until, s.cfg.ServerID, out)
}

// runFrom reads the binlog behind a position, up to a set or for ever, with another
// dump after each pause. The server id of 0 is any.
func (s *Source) runFrom(ctx context.Context, position store.Position, until gtidSet, serverID uint32, out chan<- capture.Batch) error {
	progress := false
	for {
		from, err := s.resumePosition(position)
		if err != nil {
			return err
		}
		if until != nil && from.set.contains(until) {
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

// resumePosition returns the place to read from.
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
	until        gtidSet
	out          chan<- capture.Batch
	onStart      func() // called once the server sends, if set
	snapshotMark string // the marker of a cut to hand on, if set

	progress bool // it sent something new
}

// read sends what a dump brings until the context ends, the span ends (errSpanEnd),
// the receiver pauses (errPaused; the batch that waited was received) or the
// connection is lost.
func (r *dumpRun) read(ctx context.Context) error {
	s := r.source
	asm := newAssembler(s.server, &s.cfg, binlogPosition{set: r.from.set.clone(), coords: r.from.coords})
	asm.reader.dropLargePayload = s.resume.DropLargePayload
	defer asm.close()
	d := &dump{}
	st := &stream{src: s, ctx: ctx, dump: d, asm: asm, out: r.out, until: r.until, onStart: r.onStart}
	asm.emit, asm.snapshotMark = st.send, r.snapshotMark
	asm.refresh = func(t *table) error { return s.refresh(ctx, t) }
	if s.checkUnlogged {
		asm.missingRowsFrom = s.missingRowsFrom
		asm.findWriters = func() (*indirectWriters, error) { return s.findWriters(ctx, s.server.tables) }
	}
	s.server.tables.charsets.load = func(name string) (*charset, error) { return s.loadCharset(ctx, name) }
	err := s.openDump(ctx, d, s.server, r.serverID, r.from, st)
	if err != nil {
		return err
	}
	err = d.wait(ctx)
	d.close() // from here on the stream is this goroutine's
	if errors.Is(err, errPaused) {
		if sendErr := st.sendPending(); sendErr != nil {
			err = sendErr
		}
	}
	r.progress = st.progress
	return s.explainDump(s.server, d, err)
}
