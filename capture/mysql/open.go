package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Open checks the server and goes on from the checkpoint or makes a cut. One
// *capture.NoStreamError names everything that is to be done by hand. Nothing is
// made on the server; a cut of MySQL writes a marker.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.Opening, error) {
	sv, err := s.ready(ctx)
	if err != nil {
		return capture.Opening{}, err
	}
	s.follows, s.doubtFrom = true, time.Time{}
	if at.Position == "" && at.Seq > 0 { // a cut, and not the first
		s.doubtFrom = time.Now().Add(doubtPause)
	}
	why, err := s.whyCut(ctx, at, sv)
	if err != nil {
		return capture.Opening{}, err
	}
	if why == "" {
		from, err := parsePosition(at.Position)
		if err != nil {
			return capture.Opening{}, err
		}
		if from.file == "" {
			from.coords = sv.end
		}
		s.begin(sv, at.Position, from)
		return capture.Opening{Origin: at.Origin, From: at.Position}, nil
	}
	if err := tables.Forget(ctx); err != nil {
		return capture.Opening{}, err
	}
	view, from, err := s.cut(ctx, sv, tables)
	if err != nil {
		return capture.Opening{}, fmt.Errorf("read the tables as of a place in the binlog: %w", err)
	}
	at.Position = from.position()
	if from.file == "" {
		from.coords = sv.end
	}
	s.begin(sv, at.Position, from)
	return capture.Opening{Origin: sv.origin(), From: at.Position, View: view, Why: why}, nil
}

// whyCut says in one line why the log cannot be taken up at the checkpoint; ""
// if it can.
func (s *Source) whyCut(ctx context.Context, at store.Checkpoint, sv *server) (string, error) {
	if at.Position == "" {
		return "there is no checkpoint yet", nil
	}
	if at.Origin != sv.origin() {
		return fmt.Sprintf("the checkpoint is of %s, this is %s", at.Origin, sv.origin()), nil
	}
	from, err := parsePosition(at.Position)
	if err != nil {
		return "the checkpoint is unreadable: " + err.Error(), nil
	}
	from.inFlavour(sv.flavour)
	err = s.try(ctx, sv, from)
	var lost *capture.LostError
	if errors.As(err, &lost) {
		return lost.Reason, nil
	}
	return "", err
}

// tryNow asks for the binlog from its end on.
func (s *Source) tryNow(ctx context.Context, sv *server) error {
	now, err := s.executed(ctx, sv)
	if err != nil {
		return err
	}
	return s.try(ctx, sv, place{set: now})
}

// executed returns the transactions up to now.
func (s *Source) executed(ctx context.Context, sv *server) (gtidSet, error) {
	var text string
	if err := s.control.db.QueryRowContext(ctx, "SELECT "+sv.flavour.executedSQL()).Scan(&text); err != nil {
		return nil, fmt.Errorf("ask which transactions the server has executed: %w", mystore.Explain(err))
	}
	set, err := parseSet(text)
	if err != nil {
		return nil, err
	}
	p := place{set: set}
	p.inFlavour(sv.flavour)
	return p.set, nil
}

// try asks for the binlog behind a place and hangs up at once: nil if the server
// would send it. It does so under a server id of its own, which ends nobody's
// stream.
func (s *Source) try(ctx context.Context, sv *server, from place) error {
	_, err := s.tryDump(ctx, sv, from)
	return err
}

// tryDump does the same, and returns what it found.
func (s *Source) tryDump(ctx context.Context, sv *server, from place) (*trial, error) {
	d, found := &dump{}, &trial{flavour: sv.flavour, from: from.coords}
	if err := s.openDump(ctx, d, sv, anyServerID(), from, found); err != nil {
		return nil, err
	}
	defer d.close()
	err := d.wait(ctx)
	if errors.Is(err, errServed) {
		d.close() // found is this goroutine's from here on
		return found, nil
	}
	return nil, s.explainDump(sv, d, err)
}

// trial is the handler of a dump that only finds out whether the server sends what
// follows a place, and whether that is of the file that was read.
type trial struct {
	flavour flavour
	from    coords
	made    time.Time // when the file was that the server begins with, in whole seconds
}

var errServed = errors.New("the server sends its binlog")

// HandleEvent implements replication.EventHandler.
func (t *trial) HandleEvent(e *replication.BinlogEvent) error {
	switch e.Header.EventType {
	case replication.ROTATE_EVENT:
		file, err := nextFile(e.RawData, false)
		t.from.enter(file)
		return err
	case replication.FORMAT_DESCRIPTION_EVENT:
		if err := t.from.bear(t.flavour, e.RawData); err != nil {
			return err
		}
		t.made = time.Unix(int64(e.Header.Timestamp), 0)
		return errServed
	}
	return nil
}
