package mongo_test

import (
	"encoding/json"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestAttributes runs the suite's tests of attributes and of groups over several fields, with
// values of every BSON type in both. Headers are texts, and then subdocuments.
func TestAttributes(t *testing.T) {
	t.Parallel()
	for name, documents := range map[string]bool{"headers as text": false, "headers as documents": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			capturetest.RunAttributes(t, capturetest.AttributeTable{
				Setup: func(t *testing.T, box store.Outbox) capturetest.Database {
					return newDatabaseOf(t, servers.Mongo(t), func(name string) []store.Outbox {
						box.Name = name
						return []store.Outbox{box}
					})
				},
				Insert: func(t *testing.T, db capturetest.Database, literals map[string]string) {
					t.Helper()
					doc := bson.D{}
					for name, literal := range literals {
						doc = append(doc, bson.E{Key: name, Value: valueOf(t, literal)})
						if text, is := doc[len(doc)-1].Value.(string); is && documents && name == "headers" {
							doc[len(doc)-1].Value = valueOf(t, text)
						}
					}
					db.(*database).put(t, "outbox_attributes", doc)
				},
				Quote: func(text string) string {
					quoted, _ := json.Marshal(text) // a string
					return string(quoted)
				},
				Time:    `{"$date": "2026-02-03T04:05:06.789Z"}`,
				Untyped: true,
				Columns: typedFields(),
			})
		})
	}
}

// valueOf returns the value of a literal, which is extended JSON.
func valueOf(t *testing.T, literal string) any {
	t.Helper()
	var doc bson.D
	if err := bson.UnmarshalExtJSON([]byte(`{"v": `+literal+`}`), false, &doc); err != nil {
		t.Fatal(err)
	}
	return doc[0].Value
}

// typedFields has a field for each BSON type that is not absent.
func typedFields() []capturetest.TypedColumn {
	const oid, uuid = "507f1f77bcf86cd799439011", "123e4567-e89b-12d3-a456-426614174000"
	values := map[string][][2]string{
		"text":    {{`"a/b\\c"`, `a/b\c`}},
		"boolean": {{`true`, "true"}, {`false`, "false"}},
		"number": {
			{`{"$numberInt": "5"}`, "5"}, {`{"$numberLong": "9007199254740993"}`, "9007199254740993"}, {`{"$numberDouble": "5.0"}`, "5"},
			{`{"$numberDouble": "0.1"}`, "0.1"}, {`{"$numberDecimal": "12.50"}`, "12.50"}, {`{"$numberDouble": "NaN"}`, "null"},
		},
		"date":     {{`{"$date": "1969-12-31T23:59:59.999Z"}`, "1969-12-31T23:59:59.999Z"}, {`{"$date": {"$numberLong": "253402300800000"}}`, "253402300800000"}},
		"objectId": {{`{"$oid": "` + oid + `"}`, oid}},
		"binary": {
			{`{"$uuid": "` + uuid + `"}`, uuid}, {`{"$binary": {"base64": "AP8=", "subType": "00"}}`, "0x00ff"},
			{`{"$binary": {"base64": "AP8=", "subType": "03"}}`, "0x00ff"}, {`{"$binary": {"base64": "AP8=", "subType": "80"}}`, "AP8="},
		},
		"document": {{`{"b": {"$oid": "` + oid + `"}, "a": [1, {"$date": "2026-02-03T04:05:06Z"}]}`, `{"b":"` + oid + `","a":[1,"2026-02-03T04:05:06.000Z"]}`}, {`{}`, "{}"}},
		"array":    {{`["x", null, {"c": 1}]`, `["x",null,{"c":1}]`}},
		"other": {
			{`{"$timestamp": {"t": 7, "i": 8}}`, `{"t":7,"i":8}`}, {`{"$regularExpression": {"pattern": "a+", "options": "i"}}`, "/a+/i"},
			{`{"$symbol": "s"}`, "s"}, {`{"$code": "f()"}`, "f()"}, {`{"$code": "f()", "$scope": {}}`, "f()"},
			{`{"$minKey": 1}`, "MinKey"}, {`{"$maxKey": 1}`, "MaxKey"}, {`{"$dbPointer": {"$ref": "c", "$id": {"$oid": "` + oid + `"}}}`, oid},
		},
	}
	var columns []capturetest.TypedColumn
	for name, list := range values {
		c := capturetest.TypedColumn{Name: name}
		for _, v := range list {
			c.Values = append(c.Values, capturetest.TypedValue{Literal: v[0], Text: v[1]})
		}
		columns = append(columns, c)
	}
	return columns
}
