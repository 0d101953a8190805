package mongo_test

import (
	"bytes"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestRefused writes documents that the server refuses among others: by its size, a validator and
// another unique index.
func TestRefused(t *testing.T) {
	url := servers.Mongo(t)
	db := &database{url, servers.OpenMongo(t, url)}
	preset, _ := layouts.Named("outbox-messages")
	box := store.Outbox{Name: "box", Table: "t", Layout: *preset.Documents}
	rules := options.CreateCollection().SetValidator(bson.D{{Key: "type", Value: "EVENT"}})
	if err := db.db.CreateCollection(rigs.Context(t), "t", rules); err != nil {
		t.Fatal(err)
	}
	unique := driver.IndexModel{Keys: bson.D{{Key: "payload", Value: 1}}, Options: options.Index().SetUnique(true)}
	if _, err := db.db.Collection("t").Indexes().CreateOne(rigs.Context(t), unique); err != nil {
		t.Fatal(err)
	}
	w := db.Writer(t)
	defer w.Close()
	row := func(id, kind string, payload []byte) outbox.Row {
		return outbox.Row{ID: id, Kind: kind, Payload: payload}
	}
	all, err := w.Write(rigs.Context(t), &box, []outbox.Row{
		row("1", "EVENT", []byte("1")), row("2", "EVENT", bytes.Repeat([]byte("x"), 16<<20)), row("3", "OTHER", []byte("3")),
		row("4", "EVENT", []byte("1")), row("5", "EVENT", []byte("5")), row("5", "EVENT", []byte("6")), row("6", "EVENT", []byte("\xff\x00")),
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range []string{"", "at most 16777216", "validation", "payload_1", "", "", ""} {
		if err := all[i].Err; (err == nil) != (part == "") || err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("row %d: %v, want %q", i, err, part)
		}
	}
	if !all[5].Conflict {
		t.Error("another document with the id of one in the same call is no conflict")
	}
	n, err := db.db.Collection("t").CountDocuments(rigs.Context(t), bson.D{})
	if n != 3 || err != nil {
		t.Errorf("the collection has %d documents, %v, want 3", n, err)
	}
}
