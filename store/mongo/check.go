package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// Check implements store.Installer. It returns all faults that Diagnose would grade
// store.GradeFault in one *store.SetupError, except transient ones.
func (s *Store) Check(ctx context.Context) error {
	c := checker{store: s}
	err := s.onServer(ctx, func(ctx context.Context, on *conn) error {
		c.conn = on
		return c.run(ctx)
	})
	if err != nil {
		return fmt.Errorf("check collections: %w", Explain(err))
	}
	return c.Err()
}

// checker collects findings.
type checker struct {
	finding.List
	store    *Store
	conn     *conn
	rights   rights
	thorough bool // also advice and transient faults
}

func (c *checker) run(ctx context.Context) (err error) {
	c.Subject = "server"
	c.Add(store.GradeOK, "MongoDB "+c.conn.version)
	if c.conn.standalone.Load() {
		c.Add(store.GradeAdvice, "not a member of a replica set: no change streams, snapshots or transactions, so the relay polls, and a frozen relay may write once more after a takeover", "// "+replicaSet)
	}

	if c.thorough {
		if err := c.checkWritable(ctx); err != nil {
			return err
		}
	}

	if c.rights, err = c.conn.rights(ctx); err != nil {
		return err
	}

	c.Subject = "user"
	if c.rights.unrestricted {
		c.Add(store.GradeOK, "access control is off")
	} else {
		c.Add(store.GradeOK, c.rights.user+" of "+c.rights.from)
	}

	if err := c.checkOwnTables(ctx); err != nil {
		return err
	}

	for _, name := range c.store.outboxes.Names() {
		if err := c.outbox(ctx, c.conn.table(c.store.outboxes.Lookup(name))); err != nil {
			return err
		}
	}

	return nil
}

// checkOwnTables checks the relay's collections.
func (c *checker) checkOwnTables(ctx context.Context) error {
	c.Subject = "relay collections"
	err := installed(ctx, c.conn)
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		c.AddSetupError(setup)
		return nil
	case hasCode(err, codeUnauthorized):
		database := c.conn.db.Name()
		c.AddFault(fmt.Sprintf("user %s has no privileges on database %s", c.rights.user, database), c.rights.grant(c.store, database, privilegeOn(database, ownMeta, "find"))...)
		return nil
	case err != nil:
		return err
	}

	faults := c.CountFaults()
	for _, own := range ownCollections() {
		c.reportMissingActions(c.conn.db.Name(), own.name, own.actions)
	}

	if c.CountFaults() == faults {
		c.Add(store.GradeOK, fmt.Sprintf("version %d; the user has all required privileges", version))
	}

	return nil
}

// reportMissingActions adds a fault for actions that the user lacks on a collection, and
// reports whether there are any.
func (c *checker) reportMissingActions(database, collection string, actions []string) bool {
	lacks := c.rights.lacks(database, collection, actions)
	if len(lacks) == 0 {
		return false
	}
	c.AddFault(fmt.Sprintf("user %s lacks %s on %s.%s", c.rights.user, strings.Join(lacks, ", "), database, collection),
		c.rights.grant(c.store, c.conn.db.Name(), privilegeOn(database, collection, lacks...))...)
	return true
}

// outbox checks the collection of an outbox.
func (c *checker) outbox(ctx context.Context, t *table) error {
	c.Subject = "outbox " + t.Name
	faults := c.CountFaults()
	found, err := c.collection(ctx, t)
	actions := outboxActions(t.Outbox)
	if t.id() != "_id" {
		actions = append(actions, "listIndexes") // its index is checked
	}
	if err != nil || !found || c.reportMissingActions(t.collection.Database().Name(), t.collection.Name(), actions) {
		return err
	}
	if err = c.index(ctx, t); err == nil {
		err = c.fields(ctx, t)
	}
	if err == nil {
		err = c.archives(ctx, t.Outbox)
	}
	if err != nil || c.CountFaults() > faults {
		return err
	}

	c.Add(store.GradeOK, fmt.Sprintf("%s matches layout %s; the user has all required privileges", t.path(), t.Layout.Name))
	if !c.thorough {
		return nil
	}

	return c.unsettledIndex(ctx, t)
}

// collection checks that the collection exists and accepts writes in transactions.
func (c *checker) collection(ctx context.Context, t *table) (bool, error) {
	bound, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	specs, err := t.collection.Database().ListCollectionSpecifications(bound, bson.D{{Key: "name", Value: t.collection.Name()}})
	if hasCode(err, codeUnauthorized) { // the user lacks listCollections
		names, err := visible(ctx, t.collection.Database(), t.collection.Name())
		if err == nil && len(names) == 0 && len(c.rights.lacks(t.collection.Database().Name(), t.collection.Name(), []string{"find"})) == 0 {
			return false, c.reportMissing(ctx, t)
		}
		return true, nil // the privilege check says more
	}

	if err != nil {
		return false, err
	}

	if len(specs) == 0 {
		return false, c.reportMissing(ctx, t)
	}

	capped, _ := specs[0].Options.Lookup("capped").BooleanOK()
	locale, _ := specs[0].Options.Lookup("collation", "locale").StringValueOK()
	switch {
	case specs[0].Type != "collection":
		c.AddFault(fmt.Sprintf("%s is a %s and not writable", t.path(), specs[0].Type), "// name the underlying collection")
		return false, nil
	case capped:
		c.AddFault(t.path()+" is capped: transactions cannot write to it, and it drops undelivered documents", "// copy the documents into an uncapped collection")
		return false, nil
	case locale != "" && locale != "simple":
		c.AddFault(fmt.Sprintf("%s has collation %s, which may treat different ids as equal", t.path(), locale), "// copy the documents into a collection without a collation")
		return false, nil
	}

	return true, nil
}

// reportMissing adds a fault for a missing collection and lists collections that the user
// can see.
func (c *checker) reportMissing(ctx context.Context, t *table) error {
	names, err := visible(ctx, t.collection.Database(), bson.Regex{Pattern: "^(?!" + ownPrefix + "|system\\.)"})
	if err != nil {
		return err
	}

	slices.Sort(names)
	seen := ""
	if len(names) > 0 {
		seen = "; the database has " + strings.Join(names[:min(len(names), 5)], ", ")
	}

	c.AddFault(fmt.Sprintf("collection %s does not exist%s", t.path(), seen), "// check its name in the configuration, or create it:",
		strings.Replace(shellOf(t.Outbox), "getCollection(", "createCollection(", 1)+";")
	return nil
}

// visible lists the collections of a database on which the user has a privilege, by name or
// pattern.
func visible(ctx context.Context, in *mongo.Database, name any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return in.ListCollectionNames(ctx, bson.D{{Key: "name", Value: name}}, options.ListCollections().SetAuthorizedCollections(true))
}

// index checks for a unique index on the id field. Without it every claim scans the whole
// collection.
func (c *checker) index(ctx context.Context, t *table) error {
	if t.id() == "_id" {
		return nil
	}

	found, err := t.indices(ctx, func(spec bson.Raw) bool {
		unique, _ := spec.Lookup("unique").BooleanOK()
		fields, _ := spec.Lookup("key").Document().Elements()
		_, partial := spec.Lookup("partialFilterExpression").DocumentOK()
		if !unique || partial || len(fields) != 1 || fields[0].Key() != t.id() {
			return false
		}
		order, _ := fields[0].Value().AsInt64OK()
		return order == 1 // not hashed or text
	})
	if err != nil || found {
		return err
	}

	c.AddFault(fmt.Sprintf("%s has no unique index on its id field %s", t.path(), t.id()),
		fmt.Sprintf("%s.createIndex(%s, {unique: true});", shellOf(t.Outbox), shellKeys([]string{t.id()})))
	return nil
}

// indices reports whether any index of the collection satisfies wanted.
func (t *table) indices(ctx context.Context, wanted func(spec bson.Raw) bool) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	list, err := t.collection.Indexes().List(ctx)
	if err != nil {
		return false, err
	}
	var specs []bson.Raw
	if err := list.All(ctx, &specs); err != nil {
		return false, err
	}
	return slices.ContainsFunc(specs, wanted), nil
}

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
	for doc, err := range find(ctx, commandTimeout, t.collection, bson.D{}, opts) {
		if err != nil {
			return nil, err
		}
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
	}
	slices.Sort(s.fields)
	return s, nil
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
		needed := slices.Contains([]string{l.ID, l.Payload, l.Kind}, name) || name == l.Status && t.Layout.State != store.StateBoolean
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
	c.optional(t, s)
	return c.badIDs(ctx, t)
}

// optional advises on fields that any document may lack, because a misspelt name looks alike.
func (c *checker) optional(t *table, s *sample) {
	names := append(t.Layout.GroupColumns(), document.AttributeFields(&t.Layout)...)
	if t.Layout.State == store.StateBoolean {
		names = append(names, t.Layout.Columns.Status)
	}
	var lacks []string
	for _, name := range names {
		if s.lacks(name) && !slices.Contains(lacks, name) {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) == 0 || !c.thorough {
		return
	}
	for i, name := range lacks {
		lacks[i] = columns.Mistyped(&t.Layout, name, s.fields)
	}
	c.Add(store.GradeAdvice, fmt.Sprintf("none of the newest %d documents of %s has field %s", s.docs, t.path(), strings.Join(lacks, ", ")))
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
	case store.StateBoolean:
		want = []string{"bool", "missing", "null"}
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
	if !c.thorough || !t.Layout.ShowsUnsettled() {
		return nil
	}

	id := "$" + t.id()
	isDouble := expr("$eq", bson.D{{Key: "$type", Value: id}}, "double")
	fraction := bson.D{{Key: "$expr", Value: expr("$cond", isDouble, expr("$ne", id, expr("$trunc", id)), false)}}
	other := bson.D{{Key: "$nor", Value: bson.A{bson.D{t.identified()}}}}
	filter := bson.D{{Key: "$and", Value: bson.A{t.open(), bson.D{{Key: "$or", Value: bson.A{other, fraction}}}}}}

	opts := options.Find().SetLimit(1).SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "type", Value: bson.D{{Key: "$type", Value: id}}}})
	for doc, err := range find(ctx, commandTimeout, t.collection, filter, opts) {
		switch {
		case err == nil:
			bad := cmp.Or(doc.Lookup("type").StringValue(), "missing")
			c.Add(store.GradeAdvice, fmt.Sprintf("%s has unsettled documents whose id (field %s) is %s: they are not relayed", t.path(), t.id(), bad),
				"// use an ObjectID, a string, a whole number or a UUID as their id")
		case !hasCode(err, codeTimeLimit) && (ctx.Err() != nil || !mongo.IsTimeout(err)):
			return err // else the collection is large: not finished in time
		}
	}
	return nil
}
