package outbox_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
)

func preset(t *testing.T, name string) *outbox.Outbox {
	t.Helper()
	p, _ := layouts.Named(name)
	o, err := outbox.New(store.Outbox{Table: "t", Kind: p.Kind, Layout: *p.Tables})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestRowErrors: what does not fit a layout is named with its field, its column and the way out.
func TestRowErrors(t *testing.T) {
	attributes := func(pairs ...string) (all store.Attributes) {
		for pair := range slices.Chunk(pairs, 2) {
			all = append(all, store.Attribute{Name: pair[0], Value: pair[1]})
		}
		return all
	}
	inPayload := store.FlowCatalyst()
	inPayload.Columns.Group, inPayload.GroupPath = "payload", []string{"order", "id"}
	paths, err := outbox.New(store.Outbox{Table: "t", Layout: inPayload})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := paths.Fields(&outbox.Row{ID: "1", Group: []string{"7"}, Payload: []byte(`{"order": {"id": 7}}`)}); err != nil {
		t.Errorf("the group of the payload: %v", err)
	}
	messages, err := outbox.New(store.Outbox{MessagePrefix: "p", Layout: store.Layout{State: store.StateNone, Columns: store.Columns{ID: "id", Group: "order"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    *outbox.Outbox
		row  outbox.Row
		want string
	}{
		{preset(t, "flowcatalyst"), outbox.Row{}, "id: is missing, and column id is too short for a UUID; set Row.ID"},
		{preset(t, "zeebe"), outbox.Row{Kind: "order"}, `kind: layout zeebe has no column for it, and rows of outbox t are of kind "message"; name a column in columns.kind, or leave Row.Kind empty`},
		{preset(t, "modulith"), outbox.Row{Group: []string{"7"}}, "group: layout modulith has no column for it; name one in columns.group, or leave Row.Group nil"},
		{preset(t, "postbox"), outbox.Row{Group: []string{"7"}}, "group: has 1 parts, want 2; give a part for each of tenant_id, partition_id"},
		{preset(t, "postbox"), outbox.Row{Group: []string{"1", "2"}, Attributes: attributes("tenant_id", "3")}, "attributes.tenant_id: differs from group, which is column tenant_id too; give both the same value"},
		{preset(t, "postbox"), outbox.Row{Attributes: attributes("time", "now")}, "attributes.time: is the time of the row; set Row.Created"},
		{preset(t, "postbox"), outbox.Row{Attributes: attributes("a", "\x00")}, "attributes.a: has bytes that are not UTF-8, or U+0000"},
		{preset(t, "postbox"), outbox.Row{Attributes: attributes("a", "1", "a", "2")}, "attributes.a: differs from another value for member a of column headers"},
		{preset(t, "debezium"), outbox.Row{Attributes: attributes("colour", "red")}, "attributes.colour: layout debezium has no column for it; name one in columns.attributes"},
		{preset(t, "debezium"), outbox.Row{Kind: "cart", Group: []string{"order", "7"}}, "group: differs from kind, which is column aggregatetype too"},
		{preset(t, "eventuate"), outbox.Row{Group: []string{"7"}, Attributes: attributes("PARTITION_ID", "8")}, "attributes.PARTITION_ID: differs from another value for member PARTITION_ID of column headers"},
		{paths, outbox.Row{ID: "1", Group: []string{"7"}, Payload: []byte(`{"order": {"id": 8}}`)}, "group: differs from the one in column payload at order.id; write the group there, or leave Row.Group nil"},
		{messages, outbox.Row{ID: "1", Payload: []byte(`{"id": "2"}`)}, "id: is not what member id of the payload says; write it there"},
		{messages, outbox.Row{Group: []string{"7"}, Payload: []byte(`{"id": "2"}`)}, "group: is not what member order of the payload says"},
	} {
		_, _, _, err := c.o.Insert(t.Context(), outbox.Postgres(), c.row)
		if err == nil || !errors.As(err, new(*outbox.RowError)) || !strings.HasPrefix(strings.TrimPrefix(err.Error(), "write into outbox "+c.o.Outbox().Name+": "), c.want) {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}

	modulith, _ := layouts.Named("modulith")
	if _, err := outbox.New(store.Outbox{Table: "t", Layout: *modulith.Documents}); err == nil || !strings.Contains(err.Error(), "event._class lies inside the payload") {
		t.Errorf("attributes inside the payload: %v", err)
	}
}

// TestNewIDs: the ids of a process ascend, in both forms.
func TestNewIDs(t *testing.T) {
	for name, form := range map[string]string{"debezium": "^[0-9a-f-]{36}$", "outbox-messages": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"} {
		o, last := preset(t, name), ""
		for range 1000 {
			_, _, id, err := o.Insert(t.Context(), outbox.Postgres(), outbox.Row{Kind: "EVENT"})
			if err != nil || id <= last || !regexp.MustCompile(form).MatchString(id) {
				t.Fatalf("%s: id %q after %q, %v", name, id, last, err)
			}
			last = id
		}
		if id, err := uuid.Parse(last); name == "debezium" && (err != nil || id.Version() != 7) {
			t.Errorf("id %s is no UUID of version 7", last)
		}
	}
}
