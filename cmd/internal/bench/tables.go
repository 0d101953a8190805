package bench

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// The layouts to measure.
const (
	layoutWords   = "flowcatalyst"
	layoutNumbers = "outbox-messages"
)

// outboxTable is the outbox table of a layout, with the indexes that its users have.
type outboxTable struct {
	layouts.Preset
	name string
	// pending and completed are literals for loaded rows. completed is empty for a layout
	// that deletes delivered rows.
	pending, completed string
	indexes            []demodb.Index
}

// outboxOf returns the outbox table of a layout.
func outboxOf(layout string) *outboxTable {
	preset, _ := layouts.Named(layout)
	t := &outboxTable{Preset: preset, name: preset.Schemas[layouts.Postgres].Table}
	byGroup := demodb.Index{Columns: "status, message_group, created_at"}
	if layout == layoutNumbers {
		const unsettled = " WHERE status IN (0, 9)"
		byGroup.Where = unsettled
		t.pending = "0"
		t.indexes = []demodb.Index{byGroup, {Columns: "status, created_at", Where: unsettled}, {Columns: "client_id, status, created_at"}}
		return t
	}
	t.pending, t.completed, t.indexes = "'PENDING'", "'COMPLETED'", []demodb.Index{byGroup}
	return t
}

// create returns the statements that create the table in a database.
func (t *outboxTable) create(db layouts.Database) []string {
	return demodb.CreateTable(db, &t.Preset, t.name, t.indexes...)
}

// documents returns the layout of the table's documents in MongoDB.
func (t *outboxTable) documents() *store.Layout { return t.Layout(true) }

// documentIndexes returns the keys of the indexes in MongoDB.
func (t *outboxTable) documentIndexes() (all []bson.D) {
	names := map[string]string{"message_group": "messageGroup", "created_at": "createdAt", "client_id": "clientId"}
	for _, x := range t.indexes {
		var keys bson.D
		for _, name := range strings.Split(x.Columns, ", ") {
			if other, differs := names[name]; differs {
				name = other
			}
			keys = append(keys, bson.E{Key: name, Value: 1})
		}
		all = append(all, keys)
	}
	return all
}
