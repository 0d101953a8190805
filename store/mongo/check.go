package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Check implements store.Installer. It returns all faults that Diagnose would grade
// store.GradeFault in one *store.SetupError, except transient ones.
func (s *Store) Check(ctx context.Context) error {
	c := checker{store: s}
	err := s.lifetime.Do(ctx, func(ctx context.Context) (err error) {
		if c.conn, err = s.server.open(ctx); err != nil {
			return err
		}
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
		c.AddFault(fmt.Sprintf("user %s has no privileges on database %s", c.rights.user, database), c.rights.grant(c.store, database, rightOn(database, ownMeta, "find"))...)
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
		c.rights.grant(c.store, c.conn.db.Name(), rightOn(database, collection, lacks...))...)
	return true
}

// outbox checks the collection of an outbox.
func (c *checker) outbox(ctx context.Context, t *table) error {
	c.Subject = "outbox " + t.Name
	faults := c.CountFaults()
	found, err := c.collection(ctx, t)
	if err != nil || !found {
		return err
	}

	if c.reportMissingActions(t.collection.Database().Name(), t.collection.Name(), outboxActions(t.Outbox)) {
		return nil
	}

	for _, check := range []func(context.Context, *table) error{c.index, c.fields} {
		if err := check(ctx, t); err != nil {
			return err
		}
	}

	if c.CountFaults() > faults {
		return nil
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
		names, err := t.visible(ctx, bson.D{{Key: "name", Value: t.collection.Name()}})
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
	names, err := t.visible(ctx, bson.D{{Key: "name", Value: bson.Regex{Pattern: "^(?!" + ownPrefix + "|system\\.)"}}})
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

// visible lists collections of the outbox's database on which the user has a privilege.
func (t *table) visible(ctx context.Context, filter bson.D) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return t.collection.Database().ListCollectionNames(ctx, filter, options.ListCollections().SetAuthorizedCollections(true))
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
		return unique && !partial && len(fields) == 1 && fields[0].Key() == t.id() && isAscending(fields[0].Value())
	})
	if err != nil || found {
		return err
	}

	c.AddFault(fmt.Sprintf("%s has no unique index on its id field %s", t.path(), t.id()),
		fmt.Sprintf("%s.createIndex(%s, {unique: true});", shellOf(t.Outbox), shellKeys([]string{t.id()})))
	return nil
}

func isAscending(v bson.RawValue) bool {
	n, ok := v.AsInt64OK()
	return ok && n == 1
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
