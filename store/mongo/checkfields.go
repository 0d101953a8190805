package mongo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// sampleSize is the number of newest documents whose fields are checked.
const sampleSize = 50

// sample describes the fields of some documents, without their values.
type sample struct {
	docs   int
	fields []string                   // top-level fields, sorted
	types  map[string]map[string]bool // BSON types by layout field, "missing" included
}

// sample reads the field names and types of the newest documents.
func (t *table) sample(ctx context.Context) (*sample, error) {
	names := layoutFields(&t.Layout)
	projection := bson.D{{Key: "_id", Value: 0}, {Key: "fields", Value: bson.D{{Key: "$map", Value: bson.D{
		{Key: "input", Value: bson.D{{Key: "$objectToArray", Value: "$$ROOT"}}}, {Key: "in", Value: "$$this.k"},
	}}}}}
	for i, name := range names {
		projection = append(projection, bson.E{Key: fmt.Sprintf("type%d", i), Value: bson.D{{Key: "$type", Value: "$" + name}}})
	}

	s := &sample{types: map[string]map[string]bool{}}
	for _, name := range names {
		s.types[name] = map[string]bool{}
	}

	opts := options.Find().SetSort(bson.D{{Key: "$natural", Value: -1}}).SetLimit(sampleSize).SetProjection(projection)
	err := forEach(ctx, commandTimeout, t.collection, bson.D{}, opts, func(doc bson.Raw) error {
		s.docs++
		values, _ := doc.Lookup("fields").Array().Values()
		for _, v := range values {
			if name := v.StringValue(); !slices.Contains(s.fields, name) {
				s.fields = append(s.fields, name)
			}
		}
		for i, name := range names {
			s.types[name][doc.Lookup(fmt.Sprintf("type%d", i)).StringValue()] = true
		}
		return nil
	})

	slices.Sort(s.fields)
	return s, err
}

// layoutFields lists the fields that a layout names, each once.
func layoutFields(l *store.Layout) (names []string) {
	for _, n := range l.NamedColumns() {
		if !slices.Contains(names, n.Column) {
			names = append(names, n.Column)
		}
	}
	return names
}

// lacks reports whether no sampled document has a field.
func (s *sample) lacks(name string) bool {
	return len(s.types[name]) == 1 && s.types[name]["missing"]
}

// similarField returns a field that the documents have in place of a missing one, or "". It
// differs only in case or underscores, e.g. createdAt for created_at.
func (s *sample) similarField(name string) string {
	plain := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
	for _, field := range s.fields {
		if plain(field) == plain(name) && s.lacks(name) {
			return field
		}
	}
	return ""
}

// fields checks the layout against the newest documents, because a collection has no
// schema.
func (c *checker) fields(ctx context.Context, t *table) error {
	s, err := t.sample(ctx)
	if err != nil {
		return err
	}

	if s.docs == 0 {
		c.Add(store.GradeOK, fmt.Sprintf("%s is empty: layout %s cannot be checked yet", t.path(), t.Layout.Name))
		return c.badIDs(ctx, t)
	}

	l := &t.Layout.Columns
	var lacks []string
	for _, name := range layoutFields(&t.Layout) {
		needed := slices.Contains([]string{l.ID, l.Payload, l.Status, l.Kind}, name)
		if s.lacks(name) && needed || s.similarField(name) != "" {
			lacks = append(lacks, name)
		}
	}

	if len(lacks) > 0 {
		correction, _ := columns.Correction(&t.Layout, lacks, s.fields)
		for i, name := range lacks {
			lacks[i] = columns.Mistyped(&t.Layout, name, s.fields)
		}
		c.AddFault(fmt.Sprintf("none of the newest %d documents of %s has field %s of layout %s; found: %s",
			s.docs, t.path(), strings.Join(lacks, ", "), t.Layout.Name, strings.Join(s.fields, ", ")),
			"// "+cmp.Or(correction, "use another layout, or name the fields in a custom one (layout: custom)"))
		return nil
	}

	c.times(t, s)
	c.statusType(t, s)
	if l.Group != "" && s.lacks(l.Group) && c.thorough {
		c.Add(store.GradeAdvice, fmt.Sprintf("none of the newest %d documents of %s has field %s, the message group", s.docs, t.path(), columns.Mistyped(&t.Layout, l.Group, s.fields)))
	}

	return c.badIDs(ctx, t)
}

// times checks that time fields have the type that the layout writes.
func (c *checker) times(t *table, s *sample) {
	l := &t.Layout.Columns
	wrong, is, want := "string", "texts", "dates"
	if t.Layout.TextTimes {
		wrong, is, want = "date", "dates", "texts"
	}

	for _, name := range []string{l.Delivered, l.Failed, l.Claimed, l.Settled} {
		if name != "" && s.types[name][wrong] {
			c.AddFault(fmt.Sprintf("documents of %s have %s in %s (%s), but layout %s writes %s", t.path(), is, name, t.Layout.ConfigKey(name), t.Layout.Name, want),
				"// use the other layout: outbox-messages has dates, outbox-messages-text has texts")
			return
		}
	}
}

// statusType checks that the status field has the type that the layout compares with.
func (c *checker) statusType(t *table, s *sample) {
	name, want := t.Layout.Columns.Status, []string{"string", "missing"}
	switch t.Layout.State {
	case store.StateWords:
	case store.StateNumbers:
		want = []string{"int", "long", "double", "decimal", "missing"}
	default:
		return
	}

	for is := range s.types[name] {
		if !slices.Contains(want, is) {
			c.AddFault(fmt.Sprintf("documents of %s have a status of type %s in %s, but layout %s expects type %s", t.path(), is, name, t.Layout.Name, want[0]),
				"// use another layout")
			return
		}
	}
}

// badIDs looks for unsettled documents whose ids the relay cannot represent. It is bounded
// by commandTimeout.
func (c *checker) badIDs(ctx context.Context, t *table) error {
	if !c.thorough || t.Layout.State == store.StateNone {
		return nil
	}

	id := "$" + t.id()
	fraction := bson.D{{Key: "$expr", Value: bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: id}}, "double"}}},
		bson.D{{Key: "$ne", Value: bson.A{id, bson.D{{Key: "$trunc", Value: id}}}}}, false,
	}}}}}
	other := bson.D{{Key: "$nor", Value: bson.A{bson.D{t.identified()}}}}
	filter := bson.D{{Key: "$and", Value: bson.A{t.open(), bson.D{{Key: "$or", Value: bson.A{other, fraction}}}}}}

	var bad string
	opts := options.Find().SetLimit(1).SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "type", Value: bson.D{{Key: "$type", Value: id}}}})
	err := forEach(ctx, commandTimeout, t.collection, filter, opts, func(doc bson.Raw) error {
		bad = cmp.Or(doc.Lookup("type").StringValue(), "missing")
		return nil
	})

	if bad != "" {
		c.Add(store.GradeAdvice, fmt.Sprintf("%s has unsettled documents whose id (field %s) is %s: they are not relayed", t.path(), t.id(), bad),
			"// use an ObjectID, a string, a whole number or a UUID as their id")
	}

	if hasCode(err, codeTimeLimit) || ctx.Err() == nil && mongo.IsTimeout(err) {
		return nil // large collection: not finished in time
	}

	return err
}
