package mongo_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// ids returns values by their texts.
func ids() map[string]any {
	oid, _ := bson.ObjectIDFromHex("507f1f77bcf86cd799439011")
	uuid := []byte{0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40, 0x00}
	return map[string]any{
		"507f1f77bcf86cd799439011":             oid,
		"123e4567-e89b-12d3-a456-426614174000": bson.Binary{Subtype: 4, Data: uuid},
		"0x123e4567":                           bson.Binary{Subtype: 0, Data: uuid[:4]},
		"0x123e4567e89b12d3a456426614174000":   bson.Binary{Subtype: 3, Data: uuid},
		"5":                                    int32(5),
		"-7":                                   int64(-7),
		"9223372036854775807":                  int64(1<<63 - 1),
		"12":                                   float64(12),
		"0ABCDEFGHJKMN":                        "0ABCDEFGHJKMN",
		"507F1F77BCF86CD799439012":             "507F1F77BCF86CD799439012",
		"507f1f77bcf86cd799439013":             "507f1f77bcf86cd799439013",
		"007":                                  "007",
		"0x":                                   "0x",
		"ünï ☃ $a.b":                           "ünï ☃ $a.b",
	}
}

// Ids of every type are read, claimed and settled by their texts.
func TestTypesOfIDs(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	var want []string
	for text, id := range ids() {
		r.insert(t, pending(id))
		want = append(want, text)
	}
	items := r.unsettled(t, store.UnsettledQuery{})
	var got []string
	var claims, full []store.ClaimRow
	var outcomes []store.Outcome
	for i, it := range items {
		got = append(got, it.ID)
		claims = append(claims, row(it.ID))
		again := row(it.ID)
		again.WantPayload = true
		full = append(full, again)
		status := []store.Status{store.Completed, store.Failed, store.Pending}[i%3]
		outcomes = append(outcomes, rigs.Outcome(it.ID, status))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("got ids %q, want %q", got, want)
	}
	for _, rows := range [][]store.ClaimRow{claims, full} {
		for i, a := range r.claim(t, rows...) {
			if a.Result != store.Claimed {
				t.Errorf("id %q is %s", rows[i].ID, a.Result)
			}
		}
	}
	for i, result := range r.settle(t, outcomes...) {
		if result != store.Written {
			t.Errorf("id %q: %d", outcomes[i].ID, result)
		}
	}
	for i := range outcomes {
		if status := r.status(t, ids()[outcomes[i].ID]); status != outcomes[i].Status.String() {
			t.Errorf("id %q is %s, want %s", outcomes[i].ID, status, outcomes[i].Status)
		}
	}
	left := r.unsettled(t, store.UnsettledQuery{ExcludeIDs: want[:3]})
	for _, it := range left {
		if slices.Contains(want[:3], it.ID) {
			t.Errorf("excluded id %q is shown", it.ID)
		}
	}
	if settled, err := r.store.ReadSettled(ctx(t), claims); err != nil || !settled[0] || !settled[1] || settled[2] {
		t.Errorf("got settled %v, %v", settled, err)
	}
}

// Two documents whose ids have the same text are refused by name, and neither is settled in
// place of the other.
func TestDuplicateIDTexts(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	r.insert(t, pending("5"), pending(5), pending("6"))
	var refused *store.RefusedError
	_, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("5"), row("6")})
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), `"5"`) || !strings.Contains(err.Error(), "outbox_events") {
		t.Errorf("claim of an ambiguous id: got %v", err)
	}
	_, err = r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("5", store.Completed)})
	if !errors.As(err, &refused) {
		t.Errorf("outcome of an ambiguous id: got %v", err)
	}
	// Two documents with one id do not count as one document for each of two ids.
	_, err = r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{row("5"), row("absent")})
	if !errors.As(err, &refused) {
		t.Errorf("claim of an ambiguous id and a missing row: got %v", err)
	}
	_, err = r.store.Settle(ctx(t), r.epoch, []store.Outcome{rigs.Outcome("5", store.Completed), rigs.Outcome("absent", store.Completed)})
	if !errors.As(err, &refused) {
		t.Errorf("outcome of an ambiguous id and a missing row: got %v", err)
	}
	for _, id := range []any{"5", 5, "6"} {
		if status := r.status(t, id); status != "PENDING" {
			t.Errorf("%v is %s", id, status)
		}
	}
	if a := r.claim(t, row("6"))[0]; a.Result != store.Claimed {
		t.Errorf("the other document is %s", a.Result)
	}
}

// Groups of every type are lanes and can be excluded as such.
func TestTypesOfGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	decimal, _ := bson.ParseDecimal128("5.0")
	groups := []struct {
		value any
		group store.Group
	}{
		{"5", store.GroupOf("5")}, {decimal, store.GroupOf("5.0")}, {1.5, store.GroupOf("1.5")}, {true, store.GroupOf("true")},
		{nil, store.Group{}}, {bson.D{{Key: "a", Value: 1}}, store.GroupOf(`{"a":1}`)}, {"null", store.GroupOf("null")},
		{bson.A{"x", nil}, store.GroupOf(`["x",null]`)}, {time.Unix(0, 0), store.GroupOf("1970-01-01T00:00:00.000Z")},
	}
	for i, g := range groups {
		r.insert(t, with(with(pending(i), "messageGroup", g.value), "createdAt", time.Unix(int64(i), 0)))
	}
	for i, got := range rigs.CheckExcludeLanes(t, r.store, 9)[:9] {
		if got != groups[i].group {
			t.Errorf("%v is in group %v, want %v", groups[i].value, got, groups[i].group)
		}
	}
}

// The claim and the view return payloads of every type alike.
func TestTypesOfPayloads(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers.Mongo(t), flowBox())
	payloads := []struct {
		value any
		text  string
	}{
		{`{"as": "it is"} `, `{"as": "it is"} `},
		{bson.D{{Key: "b", Value: 1}, {Key: "a", Value: bson.A{"x", 2.5}}}, `{"b":1,"a":["x",2.5]}`},
		{bson.A{1, "two"}, `[1,"two"]`},
		{bson.Binary{Data: []byte{0, 0xff, '"'}}, "\x00\xff\""},
		{nil, ""}, {"", ""}, {7, "7"}, {true, "true"},
	}
	for i, p := range payloads {
		r.insert(t, with(with(pending(i), "payload", p.value), "createdAt", time.Unix(int64(i), 0)))
	}
	r.insert(t, bson.D{{Key: "_id", Value: "none"}, {Key: "status", Value: "PENDING"}})
	items := r.unsettled(t, store.UnsettledQuery{})
	if len(items) != len(payloads)+1 || items[0].ID != "none" || items[0].Payload != nil {
		t.Fatalf("got %d items, first %+v", len(items), items[0])
	}
	for i, p := range payloads {
		it := items[i+1]
		ask := row(it.ID)
		ask.WantPayload = true
		a := r.claim(t, ask)[0]
		if string(it.Payload) != p.text || it.PayloadSize != len(p.text) || string(a.Payload) != p.text || it.Payload == nil || a.Payload == nil {
			t.Errorf("payload %v is read as %q of %d bytes and claimed as %q, want %q", p.value, it.Payload, it.PayloadSize, a.Payload, p.text)
		}
	}
	ask := row("none")
	ask.WantPayload = true
	var refused *store.RefusedError
	if _, err := r.store.Claim(ctx(t), r.epoch, time.Now(), []store.ClaimRow{ask}); !errors.As(err, &refused) || !strings.Contains(err.Error(), "payload") {
		t.Errorf("a claim without a payload: %v", err)
	}
}

// Fields may be in subdocuments, and the group in a payload that is a subdocument.
func TestPaths(t *testing.T) {
	t.Parallel()
	box := flowBox()
	c := &box.Layout.Columns
	c.Payload, c.Group, c.Status, c.Claimed, c.RetryCount, c.Error = "body", "body.customer.id", "relay.state", "relay.at", "relay.tries", "relay.error"
	box.Layout.Name = "custom"
	r := newRig(t, servers.Mongo(t), box)
	r.insert(t, bson.D{
		{Key: "_id", Value: "1"}, {Key: "createdAt", Value: time.Now()}, {Key: "relay", Value: bson.D{{Key: "state", Value: "PENDING"}}},
		{Key: "body", Value: bson.D{{Key: "customer", Value: bson.D{{Key: "id", Value: 77}}}}},
	})
	for q, lean := range map[*store.UnsettledQuery]bool{{}: false, {NoPayload: true}: true, {MaxPayload: 1}: true, {MaxPayload: 100}: false} {
		items := r.unsettled(t, *q)
		if len(items) != 1 || items[0].Group != store.GroupOf("77") || (items[0].Payload == nil) != lean || items[0].PayloadSize == 0 {
			t.Errorf("got items %+v", items)
		}
	}
	if a := r.claim(t, row("1"))[0]; a.Result != store.Claimed {
		t.Errorf("got %s", a.Result)
	}
	r.settle(t, store.Outcome{Ref: row("1").Ref, Status: store.Failed, RetryCount: 2, Error: "no", At: time.Now()})
	letters, err := r.store.Failed(ctx(t), store.DeadLetterFilter{Outbox: "events", Error: "no"}, 5, true)
	if err != nil || len(letters) != 1 || letters[0].RetryCount != 2 || string(letters[0].Payload) != `{"customer":{"id":77}}` {
		t.Errorf("got dead letters %+v, %v", letters, err)
	}
	bad := box
	bad.Layout.Columns.Claimed = "relay.state.at"
	if _, err := mongo.New(mongo.Config{URL: r.url, Name: "rig", Outboxes: []store.Outbox{bad}}); err == nil || !strings.Contains(err.Error(), "relay.state.at") {
		t.Errorf("a field inside of one that is written: %v", err)
	}
	bad.Layout.Columns.Claimed = "$at"
	if _, err := mongo.New(mongo.Config{URL: r.url, Name: "rig", Outboxes: []store.Outbox{bad}}); err == nil || !strings.Contains(err.Error(), "$at") {
		t.Errorf("a name that begins with $: %v", err)
	}
}
