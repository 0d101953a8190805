package mongo

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// minOplogWindow is how far back the oplog should reach, so that a relay that was
	// down overnight finds the missed events.
	minOplogWindow = 24 * time.Hour
	// maxMajorityLag is how far the majority may lag before events count as late.
	maxMajorityLag = 10 * time.Second
)

// Diagnose checks everything that a stream needs and returns the findings, in the order in
// which an operator should read and fix them. A store.GradeFault keeps the role from streaming.
// Diagnose changes nothing, reads the change stream for a moment, and does not disturb a
// running relay. It skips everything that the store diagnoses. An error means that the
// remaining checks could not run.
func (s *Source) Diagnose(ctx context.Context) ([]store.Finding, error) {
	e := diagnosis{source: s}
	return e.Result(e.run(ctx))
}

// diagnosis collects findings.
type diagnosis struct {
	fault.Findings

	source *Source
	server *server
}

func (e *diagnosis) run(ctx context.Context) error {
	s := e.source
	sv, faults, err := s.inspect(ctx)
	if err != nil {
		return err
	}

	e.server = sv
	streams := sv.streamFault() == nil
	if streams {
		now := sv.endPosition()
		if err := faults.AddErr(s.tryStream(ctx, sv, &now)); err != nil {
			return err
		}
		e.Add("server", store.GradeOK, "replica set "+sv.SetName)
		streams = len(faults.Faults) == 0
	}

	for i := range faults.Faults {
		e.AddFault(&faults.Faults[i])
	}

	if !streams {
		return nil
	}

	text := "any client may read the change stream of database " + sv.database
	if s.stream.user != "" {
		text = "role " + s.stream.user + " may read the change stream of database " + sv.database
	}

	e.Add("stream", store.GradeOK, text)
	e.checkIdentity(ctx)
	e.checkMajorityLag()
	return e.checkOplogWindow(ctx)
}

// checkIdentity reports whether the replica set can be distinguished from another with the
// same name.
func (e *diagnosis) checkIdentity(ctx context.Context) {
	if e.server.id != "" {
		return
	}
	e.Add("identity", store.GradeAdvice, fmt.Sprintf("role %s may not read the id of replica set %s: a checkpoint of another replica set with this name would be accepted", e.source.stream.user, e.server.SetName),
		"-- in mongosh, as an administrator", grant(ctx, e.server.db, e.source.stream.user, "clusterMonitor", "admin"))
}

// checkMajorityLag reports whether the majority keeps up, because a stream sends only
// majority-committed events.
func (e *diagnosis) checkMajorityLag() {
	if lag := e.server.Last.WrittenAt.Sub(e.server.Last.MajorityAt); lag > maxMajorityLag {
		e.Add("majority", store.GradeAdvice, fmt.Sprintf("majority of replica set %s lags by %s, which delays events by as much", e.server.SetName, lag.Round(time.Second)),
			"see which members are down or slow: rs.status()")
	}
}

// checkOplogWindow reports how far back the oplog reaches.
func (e *diagnosis) checkOplogWindow(ctx context.Context) error {
	const subject = "oplog"
	first, err := oldestOplogTime(ctx, e.server.db)
	if err != nil {
		return err
	}
	size, limit, err := oplogSize(ctx, e.server.db)
	if first.IsZero() || denied(err) {
		e.Add(subject, store.GradeAdvice, fmt.Sprintf("role %s may not read the oplog: the size of the retained log is unknown and not limited", e.source.stream.user),
			"-- in mongosh, as an administrator", grant(ctx, e.server.db, e.source.stream.user, "read", "local"))
		return nil
	}

	if err != nil {
		return fmt.Errorf("read oplog size: %w", err)
	}

	window := time.Unix(int64(e.server.written().T), 0).Sub(time.Unix(int64(first.T), 0))
	summary := fmt.Sprintf("reaches back %s, %d of at most %d MB used", window.Round(time.Second), size>>20, limit>>20)
	if size < limit/10*9 || window >= minOplogWindow { // an oplog that is not full proves nothing
		e.Add(subject, store.GradeOK, summary+"; a relay that is down for longer takes a new snapshot")
		return nil
	}

	e.Add(subject, store.GradeAdvice, summary+": a relay that is down for longer loses the log and takes a new snapshot",
		"-- in mongosh, as an administrator, on each member", fmt.Sprintf("db.adminCommand({replSetResizeOplog: 1, size: %d})", max(990, 4*limit>>20)))
	return nil
}
