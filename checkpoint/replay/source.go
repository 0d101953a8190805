package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// sourceChoice is the source of a job's rows.
type sourceChoice struct {
	source Source
	reason string
}

// maxClockSkew is the maximum lag of the relay's clock, which dates checkpoints,
// behind the server's clock, which dates commits.
const maxClockSkew = time.Minute

// chooseSource chooses the source of the job's rows.
func (r *jobRun) chooseSource(ctx context.Context) (sourceChoice, error) {
	if r.spec.Until.After(time.Now().Add(maxClockSkew)) {
		return sourceChoice{}, refusef("until (%s) is in the future; rows that commit from now on are delivered anyway", r.spec.Until.Format(time.RFC3339))
	}

	at, behind, _, err := r.startPlace(ctx)
	var lost *capture.LostError
	if err != nil && !errors.As(err, &lost) {
		return sourceChoice{}, err
	}
	if r.spec.Read == SourceTable {
		return r.chooseTable("as requested")
	}
	if r.Log == nil {
		return r.chooseTable("because the relay polls")
	}
	if r.Log.OpenHistory == nil {
		return r.chooseTable("because this database's log holds no rows")
	}
	if err == nil {
		err = r.checkReachable(ctx, at)
	}

	var other *capture.OriginError
	var setup *store.SetupError
	switch {
	case err == nil:
		return sourceChoice{SourceLog, "from the log" + behind + "; rows deleted since are sent too"}, nil
	case errors.As(err, &lost), errors.As(err, &other) && r.spec.From == "":
		return r.chooseTable("because " + err.Error())
	case errors.As(err, &other):
		return sourceChoice{}, refusef("%v; use --source table to read the table from the checkpoint's time", err)
	case errors.As(err, &setup):
		return sourceChoice{}, refusef("log cannot be read: %v", err)
	}

	return sourceChoice{}, fmt.Errorf("check log: %w", err)
}

func (r *jobRun) checkReachable(ctx context.Context, at capture.StartPoint) error {
	src, err := r.Log.OpenHistory()
	if err != nil {
		return err
	}
	defer src.Close()
	return src.CheckReachable(ctx, at)
}

// startPlace returns the position in the log at which the job starts and a note on
// it. kept is the checkpoint whose retained log has the position, "" if none has.
func (r *jobRun) startPlace(ctx context.Context) (at capture.StartPoint, behind, kept string, err error) {
	named, err := r.Store.Savepoints(ctx)
	if err != nil {
		return at, "", "", err
	}
	if r.spec.From == "" {
		if n := r.nearestSavepoint(named); n != nil {
			return r.savepointPlace(n)
		}
		return capture.StartPoint{Since: r.spec.Since}, "", "", nil
	}

	i := slices.IndexFunc(named, func(n store.Savepoint) bool { return n.Name == r.spec.From && !n.DeleteRequested })
	if i < 0 {
		return at, "", "", refusef("checkpoint %s not found", r.spec.From)
	}
	switch n := &named[i]; n.State {
	case store.SavepointRequested:
		return at, "", "", &waitError{"checkpoint " + n.Name + " to be created"}
	case store.SavepointRefused:
		return at, "", "", refusef("checkpoint %s was refused: %s", n.Name, n.Reason)
	case store.SavepointLogLost:
		// A server with its own retention reports itself which log it has. A job that
		// has started may need no more than that.
		if r.OpenRetainer != nil {
			return at, "", "", &capture.LostError{Reason: "it was retained for checkpoint " + n.Name + ": " + n.Reason}
		}
	}

	return r.savepointPlace(&named[i])
}

// nearestSavepoint returns the latest checkpoint of this log before the start time of
// the job, nil if there is none. It prefers a checkpoint with a retained log. If the
// server has its own retention, the time alone is as good, because a checkpoint may
// be far older and its log gone.
func (r *jobRun) nearestSavepoint(named []store.Savepoint) (best *store.Savepoint) {
	if r.Log == nil || r.Log.OpenRetention != nil {
		return nil
	}

	for i := range named {
		n := &named[i]
		usable := (n.State == store.SavepointMade || n.State == store.SavepointRetained) && !n.DeleteRequested &&
			n.Position != "" && n.Origin == r.Log.Origin && !n.At.Add(maxClockSkew).After(r.spec.Since)
		if !usable || best != nil && best.State == store.SavepointRetained && n.State != store.SavepointRetained {
			continue
		}
		if best == nil || best.State != n.State || n.At.After(best.At) {
			best = n
		}
	}
	return best
}

// savepointPlace returns the position of a checkpoint, in the form of startPlace.
func (r *jobRun) savepointPlace(n *store.Savepoint) (at capture.StartPoint, behind, kept string, err error) {
	at = capture.StartPoint{Checkpoint: n.Checkpoint, Since: r.spec.Since}
	if n.State == store.SavepointRetained && r.OpenRetainer != nil {
		retainer, err := r.retainer.open(r.OpenRetainer)
		if err != nil {
			return at, "", "", err
		}
		at.Slot, kept = retainer.SlotFor(n.Name), n.Name
	}
	return at, " after checkpoint " + n.Name, kept, nil
}

// chooseTable makes the job read the table, or refuses it if the table does not
// record which rows were delivered.
func (r *jobRun) chooseTable(because string) (sourceChoice, error) {
	if r.spec.Read == SourceLog {
		return sourceChoice{}, refusef("cannot read the log as requested, %s", because)
	}

	for _, o := range r.selectedOutboxes() {
		q := store.DeliveredQuery{Outbox: o.Name}
		if err := q.Validate(&o); err != nil {
			return sourceChoice{}, refusef("cannot read the table (%s): %v", because, err)
		}
	}

	return sourceChoice{SourceTable, "from the table, " + because + "; rows are selected by the time in the first column of order-by, so deleted rows " +
		"are not sent, nor rows that committed after the start with an earlier time"}, nil
}

// tableSince returns the time from which the job reads rows of the table.
func (r *jobRun) tableSince(ctx context.Context) (time.Time, error) {
	if r.spec.From == "" {
		return r.spec.Since, nil
	}

	named, err := r.Store.Savepoints(ctx)
	if err != nil {
		return time.Time{}, err
	}

	i := slices.IndexFunc(named, func(n store.Savepoint) bool { return n.Name == r.spec.From && !n.DeleteRequested })
	if i < 0 || named[i].At.IsZero() || named[i].At.After(r.UntilAt) {
		return time.Time{}, failf("checkpoint %s was deleted before its rows were read", r.spec.From)
	}
	return named[i].At, nil
}
