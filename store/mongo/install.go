package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// version is the version of the relay's collections that this program requires.
const version = 1

// ownUnreleased is a collection that unreleased versions had in place of sluicebox_queue.
const ownUnreleased = ownPrefix + "parked"

// versionID is the _id of the document in sluicebox_meta that holds the version.
const versionID = "version"

// ownCollection describes one of the relay's collections and the actions performed on it.
type ownCollection struct {
	name    string
	actions []string
	indices []ownIndex // in addition to the _id index
}

// ownIndex is an index, of all documents or only of the spilled rows.
type ownIndex struct {
	name    string
	fields  []string
	spilled bool
}

func ownCollections() []ownCollection {
	written := []string{"find", "insert", "update"}
	return []ownCollection{
		{ownLeader, written, nil},
		{ownLease, written, nil},
		{ownRecord, []string{"find", "insert", "update", "remove"}, nil},
		{ownQueue, []string{"find", "insert", "remove"}, []ownIndex{
			{laneIndex, []string{"_id.relay", "_id.queue", "_id.outbox", "lane", "_id.n"}, false},
			// The queue is a field too, so that a query of it reads no documents.
			{rowIndex, []string{"_id.relay", "_id.queue", "_id.outbox", "id"}, true},
		}},
		{ownMarker, written, nil},
		{ownMeta, written, nil}, // written last: it marks the install complete
	}
}

// options returns the options of an index, also in the form of mongosh.
func (x *ownIndex) options() (opts *options.IndexOptionsBuilder, shell string) {
	opts = options.Index().SetName(x.name)
	if !x.spilled {
		return opts, fmt.Sprintf("{name: %q}", x.name)
	}
	opts.SetPartialFilterExpression(bson.D{{Key: "_id.queue", Value: ledger.SpilledQueue}})
	return opts, fmt.Sprintf("{name: %q, partialFilterExpression: {%q: %q}}", x.name, "_id.queue", ledger.SpilledQueue)
}

// keys returns the key specification of an index.
func keys(fields []string) bson.D {
	var by bson.D
	for _, name := range fields {
		by = append(by, bson.E{Key: name, Value: 1})
	}
	return by
}

// Install implements store.Installer. Several relays may run it at once: every step is
// idempotent, and the version is written last.
func (s *Store) Install(ctx context.Context) error {
	err := s.onServer(ctx, func(ctx context.Context, on *conn) error {
		err := installed(ctx, on)
		if errors.As(err, new(*missingError)) {
			return on.install(ctx)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("install relay collections: %w", Explain(err))
	}
	return nil
}

func (c *conn) install(ctx context.Context) error {
	for _, own := range ownCollections() {
		if err := c.db.CreateCollection(ctx, own.name); err != nil && !hasCode(err, codeNamespaceExists) {
			return fmt.Errorf("create %s: %w", own.name, err)
		}
		for _, x := range own.indices {
			opts, _ := x.options()
			if _, err := c.ownCollection(own.name).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: keys(x.fields), Options: opts}); err != nil {
				return fmt.Errorf("create index on %s: %w", own.name, err)
			}
		}
	}
	return upsertOne(ctx, c.ownCollection(ownMeta), versionID, bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: version}}}})
}

// missingError says that the relay's collections, or some of them, must be created or
// migrated.
type missingError struct{ store.SetupError }

// Unwrap makes it a *store.SetupError.
func (e *missingError) Unwrap() error { return &e.SetupError }

// installed returns a *store.SetupError unless the relay's collections exist in this
// program's version. If Install can create the missing collections, the error is a
// *missingError.
func installed(ctx context.Context, on *conn) error {
	existing, err := visible(ctx, on.db, bson.Regex{Pattern: "^" + ownPrefix})
	if err != nil {
		return err
	}

	var missing []string
	for _, own := range ownCollections() {
		if !slices.Contains(existing, own.name) {
			missing = append(missing, own.name)
		}
	}
	if len(missing) == len(ownCollections()) {
		return &missingError{store.SetupError{Problem: "relay collections do not exist", Remedy: initHint}}
	}

	var meta struct {
		Version int `bson:"version"`
	}

	err = findOne(ctx, on.ownCollection(ownMeta), withID(versionID), &meta)
	switch {
	case err != nil && !errors.Is(err, mongo.ErrNoDocuments):
		return err
	case slices.Contains(missing, ownRecord) && slices.Contains(existing, ownUnreleased):
		return &store.SetupError{
			Problem: "relay collections are of an unreleased version: there is no collection " + ownRecord,
			Remedy:  "drop every collection whose name begins with " + ownPrefix + ", then " + initHint + ": the relay then starts over",
		}
	case meta.Version > version:
		return &store.SetupError{
			Problem: fmt.Sprintf("relay collections have version %d, this program supports versions up to %d", meta.Version, version),
			Remedy:  "run the newer release of sluicebox that created them",
		}
	case len(missing) > 0:
		return &missingError{store.SetupError{Problem: "relay collections missing: " + strings.Join(missing, ", "), Remedy: initHint}}
	case meta.Version < version:
		return &missingError{store.SetupError{
			Problem: fmt.Sprintf("relay collections have version %d, this program needs %d", meta.Version, version), Remedy: initHint,
		}}
	}
	return nil
}

// Script implements store.Installer. It returns the mongosh equivalent of Install.
func (s *Store) Script() string {
	var text strings.Builder
	text.WriteString("// The relay's collections; run this in mongosh, in the database of the outbox.\n")
	for _, own := range ownCollections() {
		fmt.Fprintf(&text, "db.createCollection(%q);\n", own.name)
		for _, x := range own.indices {
			_, opts := x.options()
			fmt.Fprintf(&text, "%s.createIndex(%s, %s);\n", shell(own.name), shellKeys(x.fields), opts)
		}
	}
	fmt.Fprintf(&text, "%s.updateOne({_id: %q}, {$set: {version: %d}}, {upsert: true});\n", shell(ownMeta), versionID, version)
	return text.String()
}

// shell returns the mongosh expression for a collection.
func shell(collection string) string { return fmt.Sprintf("db.getCollection(%q)", collection) }

// shellOf returns the mongosh expression for the collection of an outbox.
func shellOf(o *store.Outbox) string {
	if o.Schema == "" {
		return shell(o.Table)
	}
	return fmt.Sprintf("db.getSiblingDB(%q).getCollection(%q)", o.Schema, o.Table)
}

// shellKeys formats index keys for mongosh.
func shellKeys(fields []string) string {
	list := make([]string, len(fields))
	for i, name := range fields {
		list[i] = fmt.Sprintf("%q: 1", name)
	}
	return "{" + strings.Join(list, ", ") + "}"
}

// MayInstall reports whether the relay's collections are missing or outdated and the user's
// privileges suffice for Install to fix that. It changes nothing.
func (s *Store) MayInstall(ctx context.Context) (may bool, err error) {
	err = s.onServer(ctx, func(ctx context.Context, on *conn) error {
		err := installed(ctx, on)
		if !errors.As(err, new(*missingError)) {
			if errors.As(err, new(*store.SetupError)) {
				return nil
			}
			return err
		}

		rights, err := on.rights(ctx)
		may = err == nil
		for _, own := range ownCollections() {
			lacks := rights.lacks(on.db.Name(), own.name, append([]string{"createCollection", "createIndex"}, own.actions...))
			may = may && len(lacks) == 0
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("check privileges for relay collections: %w", Explain(err))
	}

	return may, nil
}
