package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// describedDocuments is the number of oldest and of newest documents that describe a collection.
const describedDocuments = 200

// Describe describes a collection for a proposal of its layout by its oldest and its newest
// documents, over connections of its own. wanted returns the fields whose values are kept. It
// changes nothing. The error is a *store.SetupError if there is no such collection, if it is
// empty, or if the user may not read it.
func Describe(ctx context.Context, url, application string, o *store.Outbox, wanted func(*store.TableInfo) []string) (*store.TableInfo, error) {
	v := newServer(url, application, nil)
	on, err := v.open(ctx)
	if err != nil {
		return nil, err
	}
	defer v.disconnect()
	t := on.table(o)
	d := describer{checker: checker{List: finding.List{Subject: t.path()}, conn: on}, table: t}
	info, err := d.describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe collection %s: %w", t.path(), Explain(err))
	}
	keep := wanted(info)
	for i := range info.Columns {
		if !slices.Contains(keep, info.Columns[i].Name) {
			info.Columns[i].Values = nil
		}
	}
	return info, nil
}

// describer describes a collection.
type describer struct {
	checker
	table  *table
	fields map[string]*fieldSample
	names  []string        // of the fields, as they first appear
	seen   map[string]bool // documents, by their ids
}

// fieldSample is what the documents have in one field.
type fieldSample struct {
	types     map[string]int
	values    []string // short ones
	textTimes int      // texts that are RFC 3339 times
}

func (d *describer) describe(ctx context.Context) (*store.TableInfo, error) {
	var err error
	if d.rights, err = d.conn.rights(ctx); err != nil {
		return nil, err
	}
	found, err := d.collection(ctx, d.table)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, d.Err()
	}
	in := d.table.collection.Database().Name()
	if lacks := d.rights.lacks(in, d.table.collection.Name(), []string{"find"}); len(lacks) > 0 {
		return nil, &store.SetupError{
			Problem: fmt.Sprintf("user %s may not read %s", d.rights.user, d.table.path()),
			Remedy:  fmt.Sprintf("// as an administrator\ndb.getSiblingDB(%q).grantRolesToUser(%q, [{role: \"read\", db: %q}]);", d.rights.from, d.rights.user, in),
		}
	}
	d.fields, d.seen = map[string]*fieldSample{}, map[string]bool{}
	for _, order := range []int{1, -1} {
		if err := d.read(ctx, order); err != nil {
			return nil, err
		}
	}
	if len(d.seen) == 0 {
		return nil, &store.SetupError{
			Problem: d.table.path() + " is empty, so its fields are not known",
			Remedy:  "let a service insert a document first, then run this again",
		}
	}
	info := &store.TableInfo{
		Outbox: *d.table.Outbox, Database: "MongoDB", Documents: true, Sampled: len(d.seen), Keys: []string{"_id"}, LogsGenerated: true,
		KeyStatement: func(name string) string {
			return fmt.Sprintf("%s.createIndex(%s, {unique: true});", shellOf(d.table.Outbox), shellKeys([]string{name}))
		},
	}
	for _, name := range d.names {
		info.Columns = append(info.Columns, d.fields[name].info(name, len(d.seen)))
	}
	return info, nil
}

// read adds documents in the order of insertion, or against it. The newest documents of a small
// collection are among the oldest, and are added once.
func (d *describer) read(ctx context.Context, order int) error {
	value := "$$this.v"
	isText := expr("$eq", bson.D{{Key: "$type", Value: value}}, "string")
	short := expr("$lte", bson.D{{Key: "$strLenBytes", Value: expr("$cond", isText, value, "")}}, 64)
	scalar := expr("$in", bson.D{{Key: "$type", Value: value}}, bson.A{"string", "int", "long", "double", "bool"})
	projection := bson.D{{Key: "fields", Value: bson.D{{Key: "$map", Value: bson.D{
		{Key: "input", Value: bson.D{{Key: "$objectToArray", Value: "$$ROOT"}}},
		{Key: "in", Value: bson.D{
			{Key: "k", Value: "$$this.k"}, {Key: "t", Value: bson.D{{Key: "$type", Value: value}}},
			{Key: "v", Value: expr("$cond", expr("$and", scalar, short), value, nil)},
		}},
	}}}}}
	opts := options.Find().SetSort(bson.D{{Key: "$natural", Value: order}}).SetLimit(describedDocuments).SetProjection(projection)
	for doc, err := range find(ctx, commandTimeout, d.table.collection, bson.D{}, opts) {
		if err != nil {
			return err
		}
		id := doc.Lookup("_id").String()
		if d.seen[id] {
			continue
		}
		d.seen[id] = true
		fields, _ := doc.Lookup("fields").Array().Values()
		for _, v := range fields {
			field, ok := v.DocumentOK()
			if !ok {
				return errors.New("unexpected answer of the server")
			}
			d.add(field.Lookup("k").StringValue(), field.Lookup("t").StringValue(), field.Lookup("v"))
		}
	}
	return nil
}

// add adds the value of one document's field.
func (d *describer) add(name, typ string, value bson.RawValue) {
	f := d.fields[name]
	if f == nil {
		f = &fieldSample{types: map[string]int{}}
		d.fields[name] = f
		d.names = append(d.names, name)
	}
	f.types[typ]++
	if document.Absent(value) {
		return
	}
	text := string(document.AppendText(nil, value))
	if typ == "string" {
		if _, err := time.Parse(time.RFC3339, text); err == nil {
			f.textTimes++
			return
		}
	}
	const most = 30
	if len(f.values) < most && !slices.Contains(f.values, text) {
		f.values = append(f.values, text)
		slices.Sort(f.values)
	}
}

// info describes the field as proposals see it.
func (f *fieldSample) info(name string, docs int) store.ColumnInfo {
	present := 0
	var types []string
	for typ, n := range f.types {
		if typ != "null" && typ != "undefined" {
			types, present = append(types, typ), present+n
		}
	}
	slices.Sort(types)
	only := func(allowed ...string) bool {
		return !slices.ContainsFunc(types, func(t string) bool { return !slices.Contains(allowed, t) })
	}
	some := len(types) > 0
	textTime := f.textTimes > 0 && f.textTimes == f.types["string"] && only("string")
	return store.ColumnInfo{
		Name: name, Type: strings.Join(types, " or "), NotNull: present == docs, Values: f.values,
		Time: only("date") || textTime, TextTime: textTime, Integer: some && only("int", "long", "double"),
		Text: some && only("string"), Boolean: some && only("bool"), Object: some && only("object"),
		Bytes: some && only("binData"), JSON: some && only("object", "string"),
	}
}
