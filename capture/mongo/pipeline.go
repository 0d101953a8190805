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
	// markCollection belongs to the store. It holds a document per relay, and the relay's
	// source finds the marker's token in the stream.
	markCollection = "sluicebox_marker"
	// maxEventContent is the size, in bytes, up to which an event carries its payload beside
	// the attributes once the server has refused an event as too large. The server limits
	// events like documents to 16 MiB
	// (https://www.mongodb.com/docs/v6.0/administration/change-streams-production-recommendations/),
	// and a resume token and other fields need room beside them. The claim reads larger
	// content.
	maxEventContent = 15 << 20
)

// Fields of an event as projected by the pipeline; see
// https://www.mongodb.com/docs/v6.0/reference/change-events/ for the server's fields.
const (
	fieldToken    = "_id"
	fieldKind     = "operationType"
	fieldFrom     = "ns"
	fieldTo       = "to"
	fieldTime     = "wallTime" // since version 6.0
	fieldDocument = "fullDocument"
	fieldPayload  = "payload" // with a number per payload column: a document with
	fieldValue    = "value"   // the payload or, if that is too large,
	fieldSize     = "size"    // its size
	fieldMark     = "token"   // of a marker's document
)

// plan is the change stream's filter and projections, and the readers of its events.
type plan struct {
	match bson.D
	// fullProjection keeps the payloads in the document. limitedProjection leaves out
	// payloads that are too large; computing each size costs the server a tenth of its
	// speed or more.
	fullProjection, limitedProjection bson.D
	// hash is the hash of match. The server may not find the token of an event that another
	// filter passed.
	hash string
	// readers are the outboxes over each collection.
	readers map[string][]*reader
}

// reader turns events into items of one outbox.
type reader struct {
	*document.Reader
	outbox *store.Outbox
	// payload is the event field that holds the payload under limitedProjection. "" means
	// that it stays in the document, because another column lies in it.
	payload string
}

// newPlan returns the plan for the configured outboxes.
func newPlan(cfg *Config) *plan {
	p := &plan{readers: map[string][]*reader{}}
	headFields, columns := []string{"_id", fieldMark}, []string{} // of the markers
	payloads := map[string]string{}                               // event fields by payload column
	var attributes []string
	for i := range cfg.Outboxes {
		o := &cfg.Outboxes[i]
		c := &o.Layout.Columns
		attributes = append(attributes, document.AttributeFields(&o.Layout)...)
		own := append(document.HeadFields(&o.Layout), document.AttributeFields(&o.Layout)...)
		headFields, columns = append(headFields, own...), append(columns, c.Payload)
		r := &reader{Reader: document.New(o), outbox: o}
		if slices.ContainsFunc(own, func(name string) bool { return within(c.Payload, name) }) {
			headFields = append(headFields, c.Payload)
		} else {
			if payloads[c.Payload] == "" {
				payloads[c.Payload] = fieldPayload + strconv.Itoa(len(payloads))
			}
			r.payload = payloads[c.Payload]
		}
		p.readers[o.Table] = append(p.readers[o.Table], r)
	}

	p.match = matchOf(slices.Sorted(maps.Keys(p.readers)))
	p.hash = hashOf(p.match)
	p.fullProjection = projectOf(slices.Concat(headFields, columns), nil, nil)
	p.limitedProjection = projectOf(headFields, payloads, attributes)
	return p
}

// within reports whether a path equals another or leads through it.
func within(path, other string) bool { return path == other || strings.HasPrefix(path, other+".") }

// matchOf returns the stream's filter. It passes inserts into the outbox collections,
// events that remove or replace such a collection, and markers. It uses only fields of the
// oplog entry, because a document state would make the server look up each document that
// the relay updates. It passes slightly more than needed: an exact filter, evaluated for
// every event, costs a quarter of the speed.
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

// projectOf returns the projection that drops everything the relay does not read. Payload
// columns, or their sizes if they and the attributes are too large, go into fields beside the
// document.
func projectOf(fields []string, payloads map[string]string, attributes []string) bson.D {
	d := bson.D{{Key: fieldKind, Value: 1}, {Key: fieldFrom + ".coll", Value: 1}, {Key: fieldTo + ".coll", Value: 1}, {Key: fieldTime, Value: 1}}
	for _, name := range document.ProjectedFields(fields) {
		d = append(d, bson.E{Key: fieldDocument + "." + name, Value: 1})
	}

	for _, column := range slices.Sorted(maps.Keys(payloads)) {
		full := bson.D{{Key: fieldValue, Value: "$" + fieldDocument + "." + column}}
		size, content := bson.D{{Key: "$bsonSize", Value: full}}, slices.Clone(full)
		for i, name := range attributes {
			content = append(content, bson.E{Key: strconv.Itoa(i), Value: "$" + fieldDocument + "." + name})
		}
		large := bson.D{{Key: "$gt", Value: bson.A{bson.D{{Key: "$bsonSize", Value: content}}, maxEventContent}}}
		d = append(d, bson.E{Key: payloads[column], Value: bson.D{{Key: "$cond", Value: bson.A{large, bson.D{{Key: fieldSize, Value: size}}, full}}}})
	}
	return d
}

// hashOf returns a hash of a filter, 16 hex digits.
func hashOf(match bson.D) string {
	h := fnv.New64a()
	text, err := bson.MarshalExtJSON(match, true, false)
	if err != nil {
		text = fmt.Append(nil, match) // not reached: only names and words
	}
	_, _ = h.Write(text) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// pipeline returns the pipeline of a stream that resumes at a position. For a token of
// another filter it starts at the token's time; see stream.event.
func (p *plan) pipeline(from *oplogPosition, limitPayloads bool) bson.A {
	start := bson.E{Key: "startAtOperationTime", Value: from.at}
	if from.token != "" && from.pipeline == p.hash {
		start = bson.E{Key: "resumeAfter", Value: from.resumeToken()}
	}

	project := p.fullProjection
	if limitPayloads {
		project = p.limitedProjection
	}

	return bson.A{
		bson.D{{Key: "$changeStream", Value: bson.D{start}}},
		bson.D{{Key: "$match", Value: p.match}},
		bson.D{{Key: "$project", Value: project}},
	}
}
