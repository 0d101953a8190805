package mongo

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func plainLayout() store.Layout {
	l := store.FlowCatalyst()
	l.Columns.ID = "_id"
	return l
}

func boxes(change func(l *store.Layout), tables ...string) *Config {
	cfg := &Config{Name: "relay"}
	for _, table := range tables {
		l := plainLayout()
		change(&l)
		cfg.Outboxes = append(cfg.Outboxes, store.Outbox{Name: "of " + table, Table: table, Layout: l})
	}
	return cfg
}

// The hash depends on the filter, not on the projection.
func TestPipelineHash(t *testing.T) {
	same := func(*store.Layout) {}
	one := newPlan(boxes(same, "a", "b")).hash
	if other := newPlan(boxes(same, "b", "a")).hash; other != one {
		t.Error("the order of the outboxes matters")
	}
	if other := newPlan(boxes(func(l *store.Layout) { l.Columns.Payload = "body" }, "a", "b")).hash; other != one {
		t.Error("the fields matter")
	}
	if other := newPlan(boxes(same, "a")).hash; other == one {
		t.Error("the collections do not matter")
	}
}

// The server refuses a path together with one of its prefixes.
func TestPipelineFields(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *store.Layout)
		want   []string
		inside bool // the payload is in the document
	}{
		"plain":                     {func(*store.Layout) {}, []string{"_id", "message_group", "retry_count", "token"}, false},
		"group in the payload":      {func(l *store.Layout) { l.Columns.Group = "payload.customer" }, []string{"_id", "payload.customer", "retry_count", "token"}, false},
		"group is the payload's":    {func(l *store.Layout) { l.Columns.Group = "payload" }, []string{"_id", "payload", "retry_count", "token"}, true},
		"payload inside of a group": {func(l *store.Layout) { l.Columns.Group, l.Columns.Payload = "meta", "meta.body" }, []string{"_id", "meta", "retry_count", "token"}, true},
		"id of two parts":           {func(l *store.Layout) { l.Columns.ID = "_id.n" }, []string{"_id", "message_group", "retry_count", "token"}, false},
	} {
		p := newPlan(boxes(c.change, "a"))
		var got []string
		separate := false
		for _, e := range p.limitedProjection {
			if name, is := strings.CutPrefix(e.Key, fieldDocument+"."); is {
				got = append(got, name)
			}
			separate = separate || e.Key == fieldPayload+"0"
		}
		if !slices.Equal(got, c.want) || separate == c.inside || (p.readers["a"][0].payload == "") != c.inside {
			t.Errorf("%s: the fields are %q, want %q; the payload beside them: %v", name, got, c.want, separate)
		}
	}
}
