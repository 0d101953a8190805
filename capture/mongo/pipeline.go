package mongo

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

const (
	// markCollection is one of the store's own. It holds a document for each relay,
	// whose token its source finds in the stream.
	markCollection = "sluicebox_marker"
	// maxEventPayload is the size up to which an event holds its payload, in bytes, where one
	// of them was too large for the server. It bounds an event as it bounds a document,
	// to 16 MiB
	// (https://www.mongodb.com/docs/v6.0/administration/change-streams-production-recommendations/),
	// and there are a resume token and other fields beside the payload. Larger ones are
	// read at the claim.
	maxEventPayload = 15 << 20
)

// Fields of an event as the pipeline leaves it; see
// https://www.mongodb.com/docs/v6.0/reference/change-events/ for those of the server.
const (
	fieldToken    = "_id"
	fieldKind     = "operationType"
	fieldFrom     = "ns"
	fieldTo       = "to"
	fieldTime     = "wallTime" // since version 6.0
	fieldDocument = "fullDocument"
	fieldPayload  = "payload" // and a number, for each column of payloads: a document of
	fieldValue    = "value"   // the payload, or, if that is too large,
	fieldSize     = "size"    // its size
	fieldMark     = "token"   // of a marker's document
)

// plan is what to ask a change stream for, and how to read what it answers.
type plan struct {
	match bson.D
	// fullProjection is the projection with the payloads in the document, and careful that without
	// the payloads that are too large: to ask for the size of each costs the server a
	// tenth of its speed or more.
	fullProjection, limitedProjection bson.D
	// hash is that of match: the token of an event that another one let through need
	// not be found.
	hash string
	// readers are those of the outboxes over each collection.
	readers map[string][]*reader
}

// reader makes items of the events of one outbox.
type reader struct {
	*document.Reader
	outbox *store.Outbox
	// payload is the field of the event that holds the payload of a careful stream. "" says
	// that it is in the document, because another column is there too.
	payload string
}

// newPlan makes the plan of the configured outboxes.
func newPlan(cfg *Config) *plan {
	p := &plan{readers: map[string][]*reader{}}
	heads, columns := []string{"_id", fieldMark}, []string{} // of the markers
	payloads := map[string]string{}                          // fields of the event by columns
	for i := range cfg.Outboxes {
		o := &cfg.Outboxes[i]
		c := &o.Layout.Columns
		own := slices.DeleteFunc([]string{c.ID, c.Kind, c.Group, c.RetryCount}, func(name string) bool { return name == "" })
		heads, columns = append(heads, own...), append(columns, c.Payload)
		r := &reader{Reader: document.New(o), outbox: o}
		if slices.ContainsFunc(own, func(name string) bool { return within(c.Payload, name) }) {
			heads = append(heads, c.Payload)
		} else {
			if payloads[c.Payload] == "" {
				payloads[c.Payload] = fieldPayload + strconv.Itoa(len(payloads))
			}
			r.payload = payloads[c.Payload]
		}
		p.readers[o.Table] = append(p.readers[o.Table], r)
	}
	p.match = matchOf(p.collections())
	p.hash = hashOf(p.match)
	p.fullProjection = projectOf(slices.Concat(heads, columns), nil)
	p.limitedProjection = projectOf(heads, payloads)
	return p
}

// within reports whether a path is another one or leads through it.
func within(path, other string) bool { return path == other || strings.HasPrefix(path, other+".") }

// collections returns the names of the outboxes' collections, sorted.
func (p *plan) collections() []string { return slices.Sorted(maps.Keys(p.readers)) }

// matchOf lets through the inserts of the outboxes, what takes one of them away or puts
// another collection in its place, and the markers. It asks for nothing that is not in
// the oplog: a state of the document would have the server look up each one that the
// relay updates. It lets a little more through, since the server passes each event
// through it: a filter of what is wanted and no more takes a quarter of the speed.
func matchOf(collections []string) bson.D {
	in := func(field string, values ...string) bson.E {
		return bson.E{Key: field, Value: bson.D{{Key: "$in", Value: values}}}
	}
	return bson.D{
		in(fieldKind, kindInsert, kindReplace, kindDrop, kindRename, kindDropDatabase, kindInvalidate),
		{Key: "$or", Value: bson.A{
			bson.D{in(fieldFrom+".coll", append(collections, markCollection)...)},
			bson.D{in(fieldKind, kindRename, kindDropDatabase, kindInvalidate)},
		}},
	}
}

// projectOf takes out of the events what the relay does not read. The columns of
// payloads are in fields beside the document, or their sizes are.
func projectOf(fields []string, payloads map[string]string) bson.D {
	d := bson.D{{Key: fieldKind, Value: 1}, {Key: fieldFrom + ".coll", Value: 1}, {Key: fieldTo + ".coll", Value: 1}, {Key: fieldTime, Value: 1}}
	slices.Sort(fields)
	fields = slices.Compact(fields)
	for _, name := range fields {
		inside := func(other string) bool { return name != other && within(name, other) }
		if !slices.ContainsFunc(fields, inside) { // the server takes no path beside one that it leads through
			d = append(d, bson.E{Key: fieldDocument + "." + name, Value: 1})
		}
	}
	for _, column := range slices.Sorted(maps.Keys(payloads)) {
		whole := bson.D{{Key: fieldValue, Value: "$" + fieldDocument + "." + column}}
		size := bson.D{{Key: "$bsonSize", Value: whole}}
		large := bson.D{{Key: "$gt", Value: bson.A{size, maxEventPayload}}}
		d = append(d, bson.E{Key: payloads[column], Value: bson.D{{Key: "$cond", Value: bson.A{large, bson.D{{Key: fieldSize, Value: size}}, whole}}}})
	}
	return d
}

// hashOf names a filter in 16 digits.
func hashOf(match bson.D) string {
	h := fnv.New64a()
	text, err := bson.MarshalExtJSON(match, true, false)
	if err != nil {
		text = fmt.Append(nil, match) // it is made of names and words
	}
	_, _ = h.Write(text) // it never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// pipeline is the pipeline of a stream that goes on at a place. Behind the token of
// another filter it begins with the token's time; see stream.event.
func (p *plan) pipeline(from *oplogPosition, careful bool) bson.A {
	start := bson.E{Key: "startAtOperationTime", Value: from.at}
	if from.canResume(p) {
		start = bson.E{Key: "resumeAfter", Value: from.resumeToken()}
	}
	project := p.fullProjection
	if careful {
		project = p.limitedProjection
	}
	return bson.A{
		bson.D{{Key: "$changeStream", Value: bson.D{start}}},
		bson.D{{Key: "$match", Value: p.match}},
		bson.D{{Key: "$project", Value: project}},
	}
}

// canResume reports whether the server goes on behind the place by itself.
func (p *oplogPosition) canResume(of *plan) bool { return p.token != "" && p.pipeline == of.hash }
