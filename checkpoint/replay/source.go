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

// maxClockSkew is the maximum lag of the relay's clock, which dates checkpoints,
// behind the server's clock, which dates commits.
const maxClockSkew = time.Minute

// chooseSource chooses the source of the job's rows and returns the reason.
func (r *jobRun) chooseSource(ctx context.Context) (from Source, reason string, err error) {
	if r.spec.Until.After(time.Now().Add(maxClockSkew)) {
		return "", "", refusef("until (%s) is in the future; rows that commit from now on are delivered anyway", r.spec.Until.Format(time.RFC3339))
	}

	at, err := r.startPlace(ctx)
	var lost *capture.LostError
	if err != nil && !errors.As(err, &lost) {
		return "", "", err
	}
	if r.spec.Read == SourceTable {
		return r.chooseTable("as requested")
	}
	if r.Log == nil {
		return r.chooseTable("because the relay polls")
	}
	if r.Log.OpenHistory == nil {
		return r.chooseTable("because this relay's log cannot be read again")
	}
	if err == nil {
		err = r.checkReachable(ctx, at.StartPoint)
	}

	var other *capture.OriginError
	var setup *store.SetupError
	switch {
	case err == nil:
		return SourceLog, "from the log" + at.note + "; rows deleted since are sent too", nil
	case errors.As(err, &lost), errors.As(err, &other) && r.spec.From == "":
		return r.chooseTable("because " + err.Error())
	case errors.As(err, &other):
		return "", "", refusef("%v; use --source table to read the table from the checkpoint's time", err)
	case errors.As(err, &setup):
		return "", "", refusef("log cannot be read: %v", err)
	}

	return "", "", fmt.Errorf("check log: %w", err)
}

func (r *jobRun) checkReachable(ctx context.Context, at capture.StartPoint) error {
	src, err := r.Log.OpenHistory()
	if err != nil {
		return err
	}
	defer src.Close()
	return src.CheckReachable(ctx, at)
}

// logPlace is a position in the log.
type logPlace struct {
	capture.StartPoint
	cursor store.ReplayCursor
	name   string // checkpoint whose retained log is read, "" if none is retained
	note   string // on the position, for the operator
}

// startPlace returns the position in the log at which the job starts.
func (r *jobRun) startPlace(ctx context.Context) (logPlace, error) {
	named, err := r.Store.Savepoints(ctx)
	if err != nil {
		return logPlace{}, err
	}
	if r.spec.From == "" {
		if n := r.nearestSavepoint(named); n != nil {
			return r.savepointPlace(n)
		}
		return logPlace{StartPoint: capture.StartPoint{Since: r.spec.Since}}, nil
	}

	n := findSavepoint(named, r.spec.From)
	if n == nil {
		return logPlace{}, refusef("checkpoint %s not found", r.spec.From)
	}
	switch n.State {
	case store.SavepointRequested:
		return logPlace{}, &waitError{"checkpoint " + n.Name + " to be created"}
	case store.SavepointRefused:
		return logPlace{}, refusef("checkpoint %s was refused: %s", n.Name, n.Reason)
	case store.SavepointLogLost:
		// A server with its own retention reports itself which log it has. A job that
		// has started may need no more than that.
		if r.OpenRetainer != nil {
			return logPlace{}, &capture.LostError{Reason: "it was retained for checkpoint " + n.Name + ": " + n.Reason}
		}
	}
	return r.savepointPlace(n)
}

// findSavepoint returns the checkpoint with a name; nil if there is none.
func findSavepoint(named []store.Savepoint, name string) *store.Savepoint {
	i := slices.IndexFunc(named, func(n store.Savepoint) bool { return n.Name == name && !n.DeleteRequested })
	if i < 0 {
		return nil
	}
	return &named[i]
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

// savepointPlace returns the position of a checkpoint.
func (r *jobRun) savepointPlace(n *store.Savepoint) (at logPlace, err error) {
	at.StartPoint, at.note = capture.StartPoint{Checkpoint: n.Checkpoint, Since: r.spec.Since}, " after checkpoint "+n.Name
	if n.State == store.SavepointRetained && r.OpenRetainer != nil {
		retainer, err := r.retainer.open(r.OpenRetainer)
		if err != nil {
			return at, err
		}
		at.Slot, at.name = retainer.SlotFor(n.Name), n.Name
	}
	return at, nil
}

// chooseTable makes the job read the table, or refuses it if the table does not
// record which rows were delivered.
func (r *jobRun) chooseTable(because string) (from Source, reason string, err error) {
	if r.spec.Read == SourceLog {
		return "", "", refusef("cannot read the log as requested, %s", because)
	}

	for _, o := range r.selectedOutboxes() {
		q := store.DeliveredQuery{Outbox: o.Name}
		if err := q.Validate(&o); err != nil {
			return "", "", refusef("cannot read the table (%s): %v", because, err)
		}
	}

	return SourceTable, "from the table, " + because + "; rows are selected by the time in the first column of order-by, so deleted rows " +
		"are not sent, nor rows that committed after the start with an earlier time", nil
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

	n := findSavepoint(named, r.spec.From)
	if n == nil || n.At.IsZero() || n.At.After(r.UntilAt) {
		return time.Time{}, failf("checkpoint %s was deleted before its rows were read", r.spec.From)
	}
	return n.At, nil
}
