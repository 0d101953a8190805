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

// found is where a job's rows are.
type found struct {
	source Source
	why    string
}

// clocks is by how much the relay's clock, which a checkpoint's time is of, may be
// behind that of the server, which commits are of.
const clocks = time.Minute

// find decides where the job's rows are read.
func (r *run) find(ctx context.Context) (found, error) {
	if r.spec.Until.After(time.Now().Add(clocks)) {
		return found{}, refuse("%s (until) is to come: what commits from now on is sent anyway", r.spec.Until.Format(time.RFC3339))
	}
	at, behind, _, err := r.from(ctx)
	var lost *capture.LostError
	if err != nil && !errors.As(err, &lost) {
		return found{}, err
	}
	if r.spec.Read == SourceTable {
		return r.table("as was asked for")
	}
	if r.Log == nil {
		return r.table("because the relay polls")
	}
	if r.Log.Past == nil {
		return r.table("because this database's log holds no rows")
	}
	if err == nil {
		err = r.reach(ctx, at)
	}
	var other *capture.OriginError
	var setup *store.SetupError
	switch {
	case err == nil:
		return found{SourceLog, "from the log" + behind + "; rows that were deleted since are sent, too"}, nil
	case errors.As(err, &lost), errors.As(err, &other) && r.spec.From == "":
		return r.table("because " + err.Error())
	case errors.As(err, &other):
		return found{}, refuse("%v; --source table reads the table, from the checkpoint's time on", err)
	case errors.As(err, &setup):
		return found{}, refuse("the log cannot be read: %v", err)
	}
	return found{}, fmt.Errorf("look whether the log can be read: %w", err)
}

func (r *run) reach(ctx context.Context, at capture.Place) error {
	src, err := r.Log.Past()
	if err != nil {
		return err
	}
	defer src.Close()
	return src.Reach(ctx, at)
}

// from returns the place at which the job begins in the log, what there is to say of it,
// and the name of the checkpoint for which the log is kept there, "" if it is for none.
func (r *run) from(ctx context.Context) (at capture.Place, behind, kept string, err error) {
	named, err := r.Store.Named(ctx)
	if err != nil {
		return at, "", "", err
	}
	if r.spec.From == "" {
		if n := r.before(named); n != nil {
			return r.placeOf(n)
		}
		return capture.Place{Since: r.spec.Since}, "", "", nil
	}
	i := slices.IndexFunc(named, func(n store.Named) bool { return n.Name == r.spec.From && !n.Drop })
	if i < 0 {
		return at, "", "", refuse("there is no checkpoint %s", r.spec.From)
	}
	switch n := &named[i]; n.State {
	case store.NamedWanted:
		return at, "", "", &waitError{"checkpoint " + n.Name + " to be made"}
	case store.NamedRefused:
		return at, "", "", refuse("checkpoint %s could not be made: %s", n.Name, n.Why)
	case store.NamedDropped:
		// A server that keeps its log for nobody tells by itself what it has; of a job
		// that has begun that may be enough.
		if r.Keeper != nil {
			return at, "", "", &capture.LostError{Reason: "it was kept for checkpoint " + n.Name + ", but " + n.Why}
		}
	}
	return r.placeOf(&named[i])
}

// before returns the youngest checkpoint of this log that was made before the time from
// which on rows are wanted, nil if there is none. One whose log is kept goes first. Where
// the server keeps its log for none, the time alone tells as much: a checkpoint may be far
// older, and its log gone.
func (r *run) before(named []store.Named) (best *store.Named) {
	if r.Log == nil || r.Log.Look != nil {
		return nil
	}
	for i := range named {
		n := &named[i]
		usable := (n.State == store.NamedMade || n.State == store.NamedKept) && !n.Drop &&
			n.Position != "" && n.Origin == r.Log.Origin && !n.At.Add(clocks).After(r.spec.Since)
		if !usable || best != nil && best.State == store.NamedKept && n.State != store.NamedKept {
			continue
		}
		if best == nil || best.State != n.State || n.At.After(best.At) {
			best = n
		}
	}
	return best
}

// placeOf returns the place of a checkpoint, as from does.
func (r *run) placeOf(n *store.Named) (at capture.Place, behind, kept string, err error) {
	at = capture.Place{Checkpoint: n.Checkpoint, Since: r.spec.Since}
	if n.State == store.NamedKept && r.Keeper != nil {
		keeper, err := r.keeper.open(r.Keeper)
		if err != nil {
			return at, "", "", err
		}
		at.Kept, kept = keeper.KeptAs(n.Name), n.Name
	}
	return at, " behind checkpoint " + n.Name, kept, nil
}

// table has the job read the table, unless that cannot tell what was delivered.
func (r *run) table(because string) (found, error) {
	if r.spec.Read == SourceLog {
		return found{}, refuse("the log is to be read, and it cannot be, %s", because)
	}
	for _, o := range r.chosen() {
		q := store.Delivered{Outbox: o.Name}
		if err := q.Validate(&o); err != nil {
			return found{}, refuse("the table is to be read, %s; but %v", because, err)
		}
	}
	return found{SourceTable, "from the table, " + because + "; rows are chosen by the time in the first column of order-by: those that were deleted since " +
		"are not sent, nor those that committed behind the begin with a time in front of it"}, nil
}

// since returns the time from which on rows of the table are wanted.
func (r *run) since(ctx context.Context) (time.Time, error) {
	if r.spec.From == "" {
		return r.spec.Since, nil
	}
	named, err := r.Store.Named(ctx)
	if err != nil {
		return time.Time{}, err
	}
	i := slices.IndexFunc(named, func(n store.Named) bool { return n.Name == r.spec.From && !n.Drop })
	if i < 0 || named[i].At.IsZero() || named[i].At.After(r.UntilAt) {
		return time.Time{}, fail("checkpoint %s was deleted before its rows were read", r.spec.From)
	}
	return named[i].At, nil
}
