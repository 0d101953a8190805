package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// Open checks the server and resumes from the checkpoint or takes a snapshot. One
// *capture.NoStreamError lists everything that must be fixed by hand. Open creates
// nothing on the server; a snapshot on MySQL writes a marker.
func (s *Source) Open(ctx context.Context, at store.Checkpoint, tables capture.Tables) (capture.OpenResult, error) {
	sv, err := s.ready(ctx)
	if err != nil {
		return capture.OpenResult{}, err
	}

	s.checkUnlogged, s.missingRowsFrom = true, time.Time{}
	if at.Position == "" && at.Seq > 0 { // not the first snapshot
		s.missingRowsFrom = time.Now().Add(missingRowsInterval)
	}

	reason, err := s.snapshotReason(ctx, at, sv)
	if err != nil {
		return capture.OpenResult{}, err
	}

	result := capture.OpenResult{Origin: sv.origin(), From: at.Position, SnapshotReason: reason}
	var from binlogPosition
	if reason == "" {
		if from, err = parsePosition(at.Position); err != nil {
			return capture.OpenResult{}, err
		}
	} else {
		if err := tables.ClearCheckpoint(ctx); err != nil {
			return capture.OpenResult{}, err
		}
		if result.View, from, err = s.takeSnapshot(ctx, sv, tables); err != nil {
			return capture.OpenResult{}, fmt.Errorf("take snapshot: %w", err)
		}
		result.From = from.format()
	}

	if from.file == "" {
		from.coords = sv.binlogEnd
	}
	s.resetState(sv, result.From, from)
	return result, nil
}

// snapshotReason returns one line that says why the checkpoint cannot be resumed; "" if
// it can.
func (s *Source) snapshotReason(ctx context.Context, at store.Checkpoint, sv *server) (string, error) {
	if at.Position == "" {
		return "there is no checkpoint yet", nil
	}
	if at.Origin != sv.origin() {
		return fmt.Sprintf("checkpoint belongs to %s, this server is %s", at.Origin, sv.origin()), nil
	}

	from, err := parsePosition(at.Position)
	if err != nil {
		return "checkpoint is unreadable: " + err.Error(), nil
	}

	from.resolveFlavour(sv.flavour)
	err = s.tryPosition(ctx, sv, from)
	var lost *capture.LostError
	if errors.As(err, &lost) {
		return lost.Reason, nil
	}

	return "", err
}

// tryStreamFromEnd requests the binlog from its end.
func (s *Source) tryStreamFromEnd(ctx context.Context, sv *server) error {
	now, err := s.control.executedGTIDs(ctx, sv)
	if err != nil {
		return err
	}
	return s.tryPosition(ctx, sv, binlogPosition{set: now})
}

// executedGTIDs returns the transactions executed so far.
func (c *control) executedGTIDs(ctx context.Context, sv *server) (mysql.GTIDSet, error) {
	var text string
	if err := c.db.QueryRowContext(ctx, "SELECT "+sv.flavour.executedSQL()).Scan(&text); err != nil {
		return nil, fmt.Errorf("read executed GTIDs: %w", mystore.Explain(err))
	}
	return sv.flavour.parseGTIDSet(text)
}

// tryPosition requests the binlog from a position and closes the connection; nil means
// that the server would send it. The random server id ends no other stream.
func (s *Source) tryPosition(ctx context.Context, sv *server, from binlogPosition) error {
	_, err := s.tryDump(ctx, sv, from)
	return err
}

// tryDump does the same and returns the probe.
func (s *Source) tryDump(ctx context.Context, sv *server, from binlogPosition) (*dumpProbe, error) {
	d, found := &dump{}, &dumpProbe{flavour: sv.flavour, from: from.coords}
	if err := s.openDump(ctx, d, sv, anyServerID(), from, found); err != nil {
		return nil, err
	}
	defer d.close()
	err := d.wait(ctx)
	if errors.Is(err, errProbeOK) {
		d.close() // found belongs to this goroutine from here on
		return found, nil
	}
	return nil, s.explainDump(sv, d, err)
}

// dumpProbe is the handler of a dump that only finds out whether the server sends the
// binlog from a position, and whether it is still the file that was read.
type dumpProbe struct {
	flavour flavour
	from    coords
	created time.Time // creation time of the first file, in whole seconds
}

var errProbeOK = errors.New("server sends its binlog")

// HandleEvent implements replication.EventHandler.
func (t *dumpProbe) HandleEvent(e *replication.BinlogEvent) error {
	switch e.Header.EventType {
	case replication.ROTATE_EVENT:
		file, err := nextFile(e.RawData, false)
		t.from.rotate(file)
		return err
	case replication.FORMAT_DESCRIPTION_EVENT:
		if err := t.from.checkCreated(t.flavour, e.RawData); err != nil {
			return err
		}
		t.created = time.Unix(int64(e.Header.Timestamp), 0)
		return errProbeOK
	}

	return nil
}

// readyTimeout limits Ready.
const readyTimeout = 2 * time.Second

// Ready reports whether Open could read the log now, for a relay that polls. It returns
// nil, or the *capture.NoStreamError that Open would return. Other errors say nothing
// about the stream. Ready changes nothing on the server, ends no other stream and answers
// within 2 s. It may run concurrently with any call except Close, on a source that has
// not been opened.
func (s *Source) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	_, err := s.ready(ctx)
	return err
}

// ready runs all checks of Open.
func (s *Source) ready(ctx context.Context) (*server, error) {
	sv, faults, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	if sv.canStream() {
		if err := s.tryStream(ctx, sv, &faults); err != nil {
			return nil, err
		}
	}
	return sv, faults.Err()
}
