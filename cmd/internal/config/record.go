package config

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// receiptsOf returns the values with which the destinations of a type of sinks answer a delivery,
// nil if they have none.
func receiptsOf(sinkType string) []store.RecordColumn {
	switch sinkType {
	case SinkKafka:
		return []store.RecordColumn{{Receipt: "topic"}, {Receipt: "partition", Max: math.MaxInt32}, {Receipt: "offset", Max: math.MaxInt64}}
	case SinkNATS:
		return []store.RecordColumn{{Receipt: "stream"}, {Receipt: "sequence", Max: math.MaxInt64}}
	case SinkCamunda:
		return []store.RecordColumn{{Receipt: "key", Max: math.MaxInt64}}
	case SinkRedis:
		return []store.RecordColumn{{Receipt: "stream"}, {Receipt: "id"}}
	}
	return nil
}

// recordColumns returns the columns that keep receipts, in the order of the sink's type.
func (o *Outbox) recordColumns() (list []store.RecordColumn) {
	for _, r := range receiptsOf(o.sinkType) {
		if r.Column = o.Record[r.Receipt]; r.Column != "" {
			list = append(list, r)
		}
	}
	return list
}

// checkRecord checks the receipts that record names. Their columns are checked with the layout.
func (k *checker) checkRecord(path string, o *Outbox) {
	if len(o.Record) == 0 || o.sinkType == "" || !k.hasNoProblem(path) {
		return
	}
	var names []string
	for _, r := range receiptsOf(o.sinkType) {
		names = append(names, r.Receipt)
	}
	if len(names) == 0 {
		k.fail(path, "does not apply: a sink of type %s returns no receipts; remove it", o.sinkType)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(o.Record)) {
		switch key := joinKey(path, name); {
		case !k.hasNoProblem(key):
		case !slices.Contains(names, name):
			text := "is no receipt of a sink of type " + o.sinkType + "; those are " + strings.Join(names, ", ")
			if near := store.Nearest(name, names); near != "" {
				text += "; did you mean " + near + "?"
			}
			k.fail(key, "%s", text)
		case o.Record[name] == "":
			k.fail(key, "is not set; name the column")
		}
	}
}

// setReceipts tells the sinks whose outboxes keep receipts.
func (s *Settings) setReceipts() {
	for i := range s.Outboxes {
		o := &s.Outboxes[i]
		if to, known := s.Sinks[o.Sink]; known && len(o.Record) > 0 {
			to.Receipts = true
			s.Sinks[o.Sink] = to
		}
	}
}
