package mongo

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	views "github.com/sluicebox/sluicebox/store/internal/view"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

const (
	// mostNamed is the most ids and lanes that one filter leaves out. Where there are
	// more the program alone leaves them out, as it does with all.
	mostNamed = 20_000
	// lookup is how many documents are asked for at a time whether they are parked.
	lookup = 500
	// leastWindow and mostWindow are how many documents are read at a time: the server
	// sorts a few of many faster than all.
	leastWindow = 1000
	mostWindow  = 100_000
)

// reading is what a call reads of an outbox.
type reading struct {
	*view
	table  *table
	reader *document.Reader
	query  store.Unsettled
	to     *views.Pages
	held   map[string]struct{}
	lanes  map[store.LaneKey]struct{}
	seen   int // documents of the window
	ties   ties

	waiting []store.Item // to be asked for whether they are parked
	parked  idSet        // all that are, where that is known; else nil
}

// idSet is a set of ids, by hashes that no two of them share.
type idSet map[[16]byte]struct{}

func hashID(id string) [16]byte {
	sum := sha256.Sum256([]byte(id))
	return [16]byte(sum[:16])
}

// Read implements view.Snapshot.
func (v *view) Read(ctx context.Context, o *store.Outbox, q store.Unsettled, to *views.Pages) error {
	t := v.on.table(o)
	r := &reading{
		view: v, table: t, ties: ties{table: t}, reader: document.New(o), query: q, to: to,
		held: make(map[string]struct{}, len(q.Held)), lanes: store.LaneSet(q.Left(o)),
	}
	for _, id := range q.Held {
		r.held[id] = struct{}{}
	}
	ctx = mongo.NewSessionContext(ctx, v.session)
	err := r.askOnce(ctx)
	if err == nil {
		err = r.read(ctx)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return Explain(err)
}

// read reads windows of documents, each larger than the last, until there are enough.
func (r *reading) read(ctx context.Context) error {
	filter := r.filter()
	for from, window := 0, max(leastWindow, 2*r.query.Limit); ; from, window = from+window, 2*window {
		if r.query.Limit > mostWindow || window > mostWindow {
			window = 0 // all
		}
		r.seen = 0
		opts := options.Find().SetSort(r.table.order()).SetProjection(r.projection()).SetAllowDiskUse(true).
			SetBatchSize(leastWindow).SetSkip(int64(from)).SetLimit(int64(window)).SetShowRecordID(r.ties.sorts())
		if err := each(ctx, viewTime, r.table.in, filter, opts, func(doc bson.Raw) error { return r.take(ctx, doc) }); err != nil {
			return err
		}
		last := window == 0 || r.seen < window
		if last {
			if err := r.untie(ctx); err != nil {
				return err
			}
		}
		if err := r.ask(ctx); err != nil || last {
			return err
		}
	}
}

// filter chooses unsettled documents, and leaves out what a filter can tell for sure:
// ids by their values, and lanes whose groups are texts.
func (r *reading) filter() bson.D {
	all := bson.A{bson.D{r.table.identified()}}
	if open := r.table.open(); len(open) > 0 {
		all = append(all, open)
	}
	if n := len(r.query.Held); n > 0 && n <= mostNamed {
		all = append(all, bson.D{{Key: "$nor", Value: bson.A{bson.D{r.table.among(r.query.Held)}}}})
	}
	if n := len(r.lanes); n > 0 && n <= mostNamed && len(r.table.Layout.GroupPath) == 0 {
		all = append(all, bson.D{{Key: "$nor", Value: r.leftLanes()}})
	}
	return bson.D{{Key: "$and", Value: all}}
}

// leftLanes are conditions for the lanes to leave out, one for each kind.
func (r *reading) leftLanes() (list bson.A) {
	c := &r.table.Layout.Columns
	groups := map[string]bson.A{}
	for k := range r.lanes {
		var name any
		if k.Group.Valid {
			name = k.Group.Name
		}
		groups[k.Kind] = append(groups[k.Kind], name)
	}
	for kind, names := range groups {
		var lane bson.D
		if c.Kind != "" {
			kinds := bson.A{kind}
			if kind == "" {
				kinds = append(kinds, nil)
			}
			lane = append(lane, oneOf(c.Kind, kinds))
		}
		if c.Group != "" {
			lane = append(lane, oneOf(c.Group, names))
		}
		if lane != nil { // else all documents are of one lane
			list = append(list, lane)
		}
	}
	if list == nil {
		return bson.A{bson.D{}}
	}
	return list
}

// oneOf is the condition that a field is one of some values. $in alone would also find
// a list that has one of them.
func oneOf(name string, values bson.A) bson.E {
	list := bson.D{{Key: "$type", Value: "array"}}
	return bson.E{Key: name, Value: bson.D{{Key: "$in", Value: values}, {Key: "$not", Value: list}}}
}

func (r *reading) projection() bson.D {
	c, size := &r.table.Layout.Columns, r.table.size()
	fits := bson.D{{Key: "$lte", Value: bson.A{size, r.query.Inline()}}}
	payload := bson.D{{Key: "$cond", Value: bson.A{fits, "$" + c.Payload, "$$REMOVE"}}}
	fields := project(slices.Concat([]string{c.ID, c.Kind, c.Group, c.RetryCount}, r.table.Layout.OrderBy)...)
	return append(fields, bson.E{Key: sizeField, Value: size}, bson.E{Key: payloadField, Value: payload})
}

// take takes one document.
func (r *reading) take(ctx context.Context, doc bson.Raw) error {
	r.seen++
	it, err := r.reader.Head(doc)
	if err != nil {
		return nil // a number with a fraction: Check names such ids
	}
	size, _ := doc.Lookup(sizeField).AsInt64OK()
	it.Payload, it.PayloadSize = document.Payload(doc.Lookup(payloadField)), int(size)
	if it.Payload != nil {
		it.PayloadSize = len(it.Payload) // JSON is not quite as long as BSON
	}
	_, isHeld := r.held[it.ID]
	_, isLeft := r.lanes[it.Lane()]
	if isHeld || isLeft {
		return nil
	}
	if !r.ties.sorts() {
		return r.wait(ctx, it)
	}
	if r.ties.next(doc) {
		if err := r.untie(ctx); err != nil {
			return err
		}
	}
	r.ties.add(doc, it)
	return nil
}

// untie takes the documents that are at hand to be put in order.
func (r *reading) untie(ctx context.Context) error {
	for _, t := range r.ties.take() {
		if err := r.wait(ctx, t.item); err != nil {
			return err
		}
	}
	return nil
}

// wait has a document wait to be asked for.
func (r *reading) wait(ctx context.Context, it store.Item) error {
	if r.waiting = append(r.waiting, it); len(r.waiting) < lookup {
		return nil
	}
	return r.ask(ctx)
}

// parkedHere chooses the parked rows of the outbox.
func (r *reading) parkedHere() bson.D {
	return bson.D{{Key: "_id.relay", Value: r.store.name}, {Key: "_id.outbox", Value: r.table.Name}}
}

// askOnce finds out what is parked before a whole collection is read: whoever reads it
// may park as it goes, and the server would walk over all of that, which is too new for
// the view, each time that it is asked.
func (r *reading) askOnce(ctx context.Context) error {
	if r.query.Limit <= mostWindow {
		return nil
	}
	r.parked = idSet{}
	return r.eachParked(ctx, r.parkedHere(), func(id string) { r.parked[hashID(id)] = struct{}{} })
}

func (r *reading) eachParked(ctx context.Context, filter bson.D, tell func(id string)) error {
	opts := options.Find().SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "id", Value: 1}})
	return each(ctx, viewTime, r.on.own(ownParked), filter, opts, func(doc bson.Raw) error {
		tell(doc.Lookup("id").StringValue())
		return nil
	})
}

// ask adds the documents that wait, without those that are parked.
func (r *reading) ask(ctx context.Context) error {
	waiting, parked := r.waiting, r.parked
	r.waiting = nil
	if len(waiting) == 0 {
		return nil
	}
	if parked == nil {
		parked = idSet{}
		ids := make([]string, len(waiting))
		for i := range waiting {
			ids[i] = waiting[i].ID
		}
		among := append(r.parkedHere(), bson.E{Key: "id", Value: bson.D{{Key: "$in", Value: ids}}})
		if err := r.eachParked(ctx, among, func(id string) { parked[hashID(id)] = struct{}{} }); err != nil {
			return err
		}
	}
	for _, it := range waiting {
		if len(parked) > 0 {
			if _, is := parked[hashID(it.ID)]; is {
				continue
			}
		}
		if !r.to.Add(it) {
			return errEnough
		}
	}
	return nil
}
