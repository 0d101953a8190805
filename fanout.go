package sluicebox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	"github.com/sluicebox/sluicebox/store/legs"
)

// legJoin joins the legs of a row; see legs.Store.
type legJoin interface {
	Begin(ctx context.Context, epoch store.Epoch, rows []legs.Row) ([]store.LegSet, error)
	Placed(rows []legs.Row)
}

// legRecords reads the records of rows whose legs differ; see ledger.Ledger.
type legRecords interface {
	LegRows(ctx context.Context, refs []store.Ref) ([]*store.LegRow, error)
}

// fanOut gives each row of an outbox with routes to the lanes of its legs. The rows of all legs
// share the payload, which nobody writes to. Its methods belong to the intake, except Held and
// lookUp.
type fanOut struct {
	join    legJoin
	records legRecords
	epoch   store.Epoch
	boxes   []*routedOutbox
	byName  map[string]*routedOutbox
	compare func(a, b store.Position) int

	// polling: each row is looked up, because no mark tells which legs have ended.
	polling bool

	// rereadTo is the greatest saved mark. Rows up to it were read before, so some legs may have
	// passed them. "" is behind it.
	rereadTo store.Position

	// parts are the batches of an unfinished transaction up to rereadTo. Only its end has the
	// position that tells which legs have passed it.
	parts []capture.Batch

	// facts are what was read about the rows that are placed next.
	facts facts
}

// facts are what the database says about rows, where it says anything.
type facts struct {
	records map[store.Ref]*store.LegRow
	settled map[store.Ref]bool
}

// routedOutbox is an outbox with routes.
type routedOutbox struct {
	name   string
	router *route.Router
	legs   []legLanes

	// showsUnsettled: a sweep finds what a leg that is configured no longer has passed.
	showsUnsettled bool

	items []store.Item // of the present batch; reused
	rows  []legs.Row   // by the same index
}

// legLanes are the lanes of a leg.
type legLanes struct {
	route, name string
	lanes       *dispatch.Dispatcher
	tracker     *checkpoint.Tracker

	// mark is what the leg had passed when the session started; "" is nothing.
	mark store.Position
	part []store.Item // reused
}

// newFanOut returns the fan-out of a session; nil if no outbox has routes. Its lanes are missing.
func (o *Options) newFanOut(join legJoin, records legRecords, polling bool) (*fanOut, error) {
	if !o.hasRoutes() {
		return nil, nil
	}
	f := &fanOut{join: join, records: records, byName: map[string]*routedOutbox{}, polling: polling}
	for i := range o.Outboxes {
		box := &o.Outboxes[i]
		if len(box.Routes) == 0 {
			continue
		}
		router, err := box.router()
		if err != nil {
			return nil, &store.SetupError{Problem: fmt.Sprintf("outbox %s: %v", box.Name, err)}
		}
		to := &routedOutbox{name: box.Name, router: router, showsUnsettled: box.Layout.ShowsUnsettled()}
		for _, r := range box.StoreOutbox().Routes {
			to.legs = append(to.legs, legLanes{route: r.Name, name: store.LegName(box.Name, r.Name)})
		}
		f.boxes, f.byName[box.Name] = append(f.boxes, to), to
	}
	return f, nil
}

// fanOutTo makes the intake give rows to the legs of a session, if any; see fanOut.connect.
func (f *intake) fanOutTo(fan *fanOut, lanes map[string]*dispatch.Dispatcher, trackers *checkpoint.Trackers, marks map[string]store.LegMark, compare func(a, b store.Position) int) {
	if f.fan = fan; fan != nil {
		fan.connect(f.epoch, lanes, trackers, marks, compare)
		f.setAside(fan.unmatched())
	}
}

// connect sets the leader's epoch, the lanes of the legs and where each leg starts. compare orders
// positions.
func (f *fanOut) connect(epoch store.Epoch, lanes map[string]*dispatch.Dispatcher, trackers *checkpoint.Trackers, marks map[string]store.LegMark, compare func(a, b store.Position) int) {
	f.epoch, f.compare = epoch, compare
	for _, b := range f.boxes {
		for i := range b.legs {
			l := &b.legs[i]
			l.lanes, l.tracker, l.mark = lanes[l.name], trackers.Leg(l.name), marks[l.name].Position
			if l.mark != "" && compare(l.mark, f.rereadTo) > 0 {
				f.rereadTo = l.mark
			}
		}
	}
}

// unmatched returns the lanes of rows that no route matches.
func (f *fanOut) unmatched() (lanes []*dispatch.Dispatcher) {
	for _, b := range f.boxes {
		lanes = append(lanes, b.legs[len(b.legs)-1].lanes)
	}
	return lanes
}

// together reports whether two sinks have routes of the same outbox.
func (f *fanOut) together(a, b *dispatch.Dispatcher) bool {
	return f != nil && slices.ContainsFunc(f.boxes, func(box *routedOutbox) bool { return box.to(a) && box.to(b) })
}

// to reports whether a sink has a route of the outbox.
func (b *routedOutbox) to(lanes *dispatch.Dispatcher) bool {
	return slices.ContainsFunc(b.legs, func(l legLanes) bool { return l.lanes == lanes })
}

// box returns an outbox with routes, nil if the outbox has none.
func (f *fanOut) box(outbox string) *routedOutbox {
	if f == nil {
		return nil
	}
	return f.byName[outbox]
}

// match returns the legs of a row.
func (b *routedOutbox) match(it *store.Item) store.LegSet {
	if set := b.router.Match(it); set != 0 {
		return set
	}
	return store.LegSet(0).With(len(b.legs) - 1) // unmatched
}

// routesOf returns the names of the routes that match a row.
func (b *routedOutbox) routesOf(it *store.Item) (names []string) {
	for i := range b.router.Match(it).All() {
		names = append(names, b.legs[i].route)
	}
	return names
}

// legNames returns the names of the legs of a row, nil if its outbox has no routes.
func (f *fanOut) legNames(it *store.Item) (names []string) {
	b := f.box(it.Outbox)
	if b == nil {
		return nil
	}
	for i := range b.match(it).All() {
		names = append(names, b.legs[i].name)
	}
	return names
}

// placement is where rows come from.
type placement struct {
	position store.Position // of their batch; "" within a transaction
	end      store.Position // of their transaction, if it is known
	seq      store.Seq      // of the last row
	unmarked bool           // they are from the table; see legs.Row
	fresh    time.Time      // see Dispatcher.AppendFresh
}

// place puts the rows of outboxes with routes into the lanes of their legs, and enters the batch in
// the trackers of all legs. It returns the other rows. observed is called as by intake.split.
func (f *fanOut) place(ctx context.Context, items []store.Item, at *placement, observed func(outbox string, rows int)) (rest []store.Item, err error) {
	if at.position != "" && f.rereadTo != "" && f.compare(at.position, f.rereadTo) > 0 {
		f.rereadTo = ""
	}
	rest = f.sort(items, at.end, at.unmarked)
	for _, b := range f.boxes {
		if len(b.items) > 0 {
			observed(b.name, len(b.items))
		}
		if _, err := f.begin(ctx, b); err != nil {
			return nil, err
		}
		b.place(f.passed(b, at.end), at)
		f.join.Placed(b.rows)
		b.reset()
	}
	return rest, nil
}

// sort collects the rows of each outbox with routes, and returns the other rows in place.
func (f *fanOut) sort(items []store.Item, end store.Position, unmarked bool) (rest []store.Item) {
	rest = items[:0]
	for i := range items {
		it := &items[i]
		b := f.byName[it.Outbox]
		if b == nil {
			rest = append(rest, *it)
			continue
		}
		b.items = append(b.items, *it)
		b.rows = append(b.rows, legs.Row{
			Ref: it.Ref, Matched: b.match(it), Passed: f.passed(b, end), Unmarked: unmarked,
			Settled: f.facts.settled[it.Ref], Known: f.facts.records[it.Ref],
		})
	}
	clear(items[len(rest):])
	return rest
}

// passed returns the legs that had passed a position when the session started.
func (f *fanOut) passed(b *routedOutbox, end store.Position) (set store.LegSet) {
	if f.rereadTo == "" || end == "" {
		return 0
	}
	for i := range b.legs {
		if b.legs[i].mark != "" && f.compare(end, b.legs[i].mark) <= 0 {
			set = set.With(i)
		}
	}
	return set
}

// begin enters the collected rows in the join, and collects the rows of each leg. It returns the
// number of rows that a leg gets. It retries until the database answers.
func (f *fanOut) begin(ctx context.Context, b *routedOutbox) (some int, err error) {
	if len(b.rows) == 0 {
		return 0, nil
	}
	sets, err := f.join.Begin(ctx, f.epoch, b.rows)
	for retry := untilAnswered(); err != nil; sets, err = f.join.Begin(ctx, f.epoch, b.rows) {
		if errors.Is(err, store.ErrNotLeader) {
			return 0, err
		}
		if err := retry.Wait(ctx); err != nil {
			return 0, err
		}
	}
	for i, set := range sets {
		if set != 0 {
			some++
		}
		for k := range set.All() {
			b.legs[k].take(&b.items[i], b.rows[i].Known)
		}
	}
	return some, nil
}

// untilAnswered returns the waits between attempts to read records.
func untilAnswered() *backoff.Doubling {
	return &backoff.Doubling{Min: 20 * time.Millisecond, Max: 2 * time.Second}
}

// take collects a row of the leg.
func (l *legLanes) take(it *store.Item, known *store.LegRow) {
	l.part = append(l.part, *it)
	own := &l.part[len(l.part)-1]
	own.Outbox, own.RetryCount = l.name, 0 // the count in the table is nobody's
	if known != nil {
		own.RetryCount = known.Retries[l.route].Count
	}
}

// place puts the collected rows into the lanes.
func (b *routedOutbox) place(passed store.LegSet, at *placement) {
	for i := range b.legs {
		l := &b.legs[i]
		position := at.position
		if passed.Has(i) {
			l.tracker.Passed(at.seq)
			position = "" // its mark is further on
		}
		if t := l.tracker.Begin(position, at.seq, len(l.part)); t != nil {
			l.lanes.AppendFresh(l.part, t, at.fresh)
		}
	}
}

// reset drops the collected rows and keeps their space.
func (b *routedOutbox) reset() {
	clear(b.items)
	clear(b.rows)
	b.items, b.rows = b.items[:0], b.rows[:0]
	for i := range b.legs {
		clear(b.legs[i].part)
		b.legs[i].part = b.legs[i].part[:0]
	}
}

// looksUp reports whether the rows that come next must be looked up.
func (f *fanOut) looksUp() bool { return f != nil && (f.polling || f.rereadTo != "") }

// lookUp reads the records of the rows of outboxes with routes. It retries until the database
// answers, because no row may be placed without: a leg would get rows again, or miss them.
func (f *fanOut) lookUp(ctx context.Context, batches ...[]store.Item) (map[store.Ref]*store.LegRow, error) {
	var refs []store.Ref
	for _, items := range batches {
		for i := range items {
			if f.byName[items[i].Outbox] != nil {
				refs = append(refs, items[i].Ref)
			}
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	found := map[store.Ref]*store.LegRow{}
	for some := range slices.Chunk(refs, statusBatchRows) {
		retry := untilAnswered()
		for {
			records, err := f.records.LegRows(ctx, some)
			if err == nil {
				for i, rec := range records {
					if rec != nil {
						found[some[i]] = rec
					}
				}
				break
			}
			if err := retry.Wait(ctx); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// noteSettled records that a row which is placed next is settled, and reports whether it has legs.
// The join knows which of them need the row nevertheless.
func (f *fanOut) noteSettled(it *store.Item) bool {
	if f.box(it.Outbox) == nil {
		return false
	}
	if f.facts.settled == nil {
		f.facts.settled = map[store.Ref]bool{}
	}
	f.facts.settled[it.Ref] = true
	return true
}

// maxPartBytes limits the rows of an unfinished transaction that wait for its position. The legs get
// the rows of a larger one again, whether or not they have passed it.
const maxPartBytes = 64 << 20

// whole returns batches with the parts of a transaction that were kept, and keeps the parts at
// the end.
func (f *fanOut) whole(batches []capture.Batch) []capture.Batch {
	if f.rereadTo == "" && len(f.parts) == 0 {
		return batches
	}
	batches = append(f.parts, batches...)
	f.parts = nil
	end := len(batches)
	bytes := 0
	for end > 0 && batches[end-1].Position == "" && len(batches[end-1].Marks) == 0 {
		end--
		bytes += int(store.BytesOf(batches[end].Items))
	}
	if f.rereadTo == "" || bytes > maxPartBytes {
		return batches
	}
	f.parts = slices.Clone(batches[end:])
	return batches[:end]
}

// insertFound inserts rows of one outbox that a sweep found, and returns how many. It leaves out rows
// that a lane of any leg holds by now, or that settled meanwhile.
func (f *fanOut) insertFound(ctx context.Context, b *routedOutbox, items []store.Item, records map[store.Ref]*store.LegRow) int {
	for i := range b.legs {
		items = b.legs[i].lanes.Unknown(b.legs[i].name, items)
	}
	for i := range items {
		b.items = append(b.items, items[i])
		b.rows = append(b.rows, legs.Row{Ref: items[i].Ref, Matched: b.match(&items[i]), Unmarked: true, Known: records[items[i].Ref]})
	}
	placed, err := f.begin(ctx, b)
	for i := range b.legs {
		if err == nil {
			b.legs[i].lanes.InsertFound(b.legs[i].part)
		}
	}
	b.reset()
	return placed
}

// legItems returns the rows as rows of their legs. It takes numbered rows that no lane gets, of a
// start.
func (f *fanOut) legItems(ctx context.Context, epoch store.Epoch, items []store.Item) (all []store.Item, err error) {
	f.epoch = epoch
	if f.facts.records, err = f.lookUp(ctx, items); err != nil {
		return nil, err
	}
	all = slices.Clone(f.sort(items, "", true))
	for _, b := range f.boxes {
		if _, err := f.begin(ctx, b); err != nil {
			return nil, err
		}
		for i := range b.legs {
			all = append(all, b.legs[i].part...)
		}
		b.reset()
	}
	return all, nil
}

// held returns the ids of rows that a lane of any leg holds.
func (b *routedOutbox) held() []string {
	lanes := make(map[string]*dispatch.Dispatcher, len(b.legs))
	for i := range b.legs {
		lanes[b.legs[i].name] = b.legs[i].lanes
	}
	return heldBy(lanes)
}

// heldBy returns the ids of rows that a lane of any leg holds, each once. Between sessions a leg has
// no lanes.
func heldBy(legs map[string]*dispatch.Dispatcher) (ids []string) {
	for leg, lanes := range legs {
		if lanes != nil {
			ids = append(ids, lanes.Held(leg)...)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
