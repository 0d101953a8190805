package store_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func TestBuiltInLayoutsAreValid(t *testing.T) {
	for _, l := range []store.Layout{store.FlowCatalyst(), store.OutboxMessages()} {
		if err := l.Validate(); err != nil {
			t.Errorf("%s: %v", l.Name, err)
		}
	}
}

func TestBuiltInLayoutsAreNotShared(t *testing.T) {
	l := store.FlowCatalyst()
	l.Words[store.Pending] = "changed"
	if store.FlowCatalyst().Words[store.Pending] != "PENDING" {
		t.Error("a change of one copy is visible in the next")
	}
}

func TestLayoutValidate(t *testing.T) {
	words := func(change func(*store.Layout)) store.Layout {
		l := store.FlowCatalyst()
		change(&l)
		return l
	}
	numbers := func(change func(*store.Layout)) store.Layout {
		l := store.OutboxMessages()
		change(&l)
		return l
	}
	for _, c := range []struct {
		name   string
		layout store.Layout
		want   []string // substrings of the error; none: valid
	}{
		{"empty", store.Layout{Name: "mine"}, []string{"layout mine: columns.id is not set; name the column", "columns.payload is not set", "layout mine: state is required"}},
		{"no columns", store.Layout{Name: "mine", State: store.StateTimestamps}, []string{"columns.id is not set", "columns.payload is not set", "columns.delivered is not set"}},
		{"no status column", words(func(l *store.Layout) { l.Columns.Status = "" }), []string{"columns.status is not set"}},
		{"no status column for numbers", numbers(func(l *store.Layout) { l.Columns.Status = "" }), []string{"columns.status is not set"}},
		{"two words", words(func(l *store.Layout) { delete(l.Words, store.Failed); l.Words[store.Processing] = "" }), nil},
		{"one word for each row", words(func(l *store.Layout) { delete(l.Words, store.Completed) }), []string{"words.completed is not set; COMPLETED needs a word"}},
		{"no words", words(func(l *store.Layout) { l.Words = nil }), []string{"words.pending is not set", "words.completed is not set"}},
		{"no word of what is deleted", numbers(func(l *store.Layout) { delete(l.Numbers, store.Completed) }), nil},
		{"a word twice", words(func(l *store.Layout) { l.Words[store.Failed] = "PENDING" }), []string{`words.failed is "PENDING", which stands for PENDING too`}},
		{"no number", numbers(func(l *store.Layout) { delete(l.Numbers, store.Pending) }), []string{"numbers.pending is not set; PENDING needs a number"}},
		{"an attribute twice", words(func(l *store.Layout) {
			l.Attributes = []store.AttributeColumn{{Column: "t", Name: store.AttributeType}, {Column: "type", Name: "type"}}
		}), []string{`columns.type names column "type", whose attribute type column "t" gives too`}},
		{"an attribute that the relay writes", words(func(l *store.Layout) {
			l.Attributes = []store.AttributeColumn{{Column: "status", Name: "status"}}
		}), []string{`columns.attributes is column "status", which columns.status is too`}},
		{"a path and two columns", words(func(l *store.Layout) { l.GroupRest, l.GroupPath = []string{"x"}, []string{"a"} }),
			[]string{"group-path needs a single column in columns.group"}},
		{"receipts", words(func(l *store.Layout) {
			l.Record = []store.RecordColumn{{Receipt: "topic", Column: "kafka_topic"}, {Receipt: "offset", Column: "kafka_offset", Max: 1 << 40}}
		}), nil},
		{"receipts in other columns", words(func(l *store.Layout) {
			l.Record = []store.RecordColumn{{Receipt: "topic", Column: "id"}, {Receipt: "offset", Column: "kafka_offset"}, {Receipt: "partition", Column: "kafka_offset"}}
		}), []string{`record.topic is column "id", which columns.id is too`, `record.partition is column "kafka_offset", which record.offset is too`}},
		{"a receipt in the state", words(func(l *store.Layout) { l.Record = []store.RecordColumn{{Receipt: "topic", Column: "status"}} }),
			[]string{`record.topic is column "status", which columns.status is too`}},
		{"receipts without names", words(func(l *store.Layout) { l.Record = []store.RecordColumn{{Column: "c"}, {Receipt: "topic"}} }),
			[]string{`record has column "c" without the name of a receipt`, "record.topic is not set; name the column"}},
		{"receipts of deleted rows", numbers(func(l *store.Layout) { l.Record = []store.RecordColumn{{Receipt: "topic", Column: "t"}} }),
			[]string{"record does not apply: layout outbox-messages deletes a delivered row"}},
		{"receipts without a state", store.Layout{Name: "bare", State: store.StateNone, Columns: store.Columns{ID: "i", Payload: "p"},
			Record: []store.RecordColumn{{Receipt: "topic", Column: "t"}}}, []string{"record needs a state in the table"}},
		{"a group in the state", words(func(l *store.Layout) { l.Columns.Group = "status" }), []string{`columns.status is column "status", which columns.group is too`}},
		{"an id as the payload", words(func(l *store.Layout) { l.Columns.Payload = "id" }), []string{`columns.payload is column "id", which columns.id is too`}},
		{"a text over the state", words(func(l *store.Layout) { l.Columns.Error = "status" }), []string{`columns.error is column "status", which columns.status is too`}},
		{"a path and no column", words(func(l *store.Layout) { l.Columns.Group, l.GroupPath = "", []string{"a"} }), []string{"group-path needs columns.group"}},
		{"a path into the payload", words(func(l *store.Layout) { l.Columns.Group, l.GroupPath = "payload", []string{"a"} }), nil},
		{"a kind that is the group", words(func(l *store.Layout) { l.Columns.Kind = "message_group" }), nil},
		{"in the order of a written column", words(func(l *store.Layout) { l.OrderBy = []string{"processed_at", "id"} }), nil},
		{"a number twice", numbers(func(l *store.Layout) { l.Numbers[store.Processing] = 0 }), []string{"numbers.processing is 0, which stands for PENDING too"}},
		{"a code of another status", numbers(func(l *store.Layout) { l.FailedNumbers[store.ReasonGateway] = 9 }), []string{"failed-numbers.gateway is 9, which stands for PROCESSING too"}},
		{"a code that is FAILED's own", numbers(func(l *store.Layout) { l.FailedNumbers[store.ReasonGateway] = 3 }), nil},
		{"no state", store.Layout{Name: "bare", State: store.StateNone, Columns: store.Columns{ID: "i", Payload: "p"}}, nil},
		{"times", store.Layout{Name: "t", State: store.StateTimestamps,
			Columns: store.Columns{ID: "i", Payload: "p", Delivered: "d", Failed: "f"}}, nil},
		{"a time of delivery", store.Layout{Name: "t", State: store.StateTimestamps, Columns: store.Columns{ID: "i", Payload: "p", Delivered: "d"}}, nil},
		{"a boolean", store.Layout{Name: "t", State: store.StateBoolean, Columns: store.Columns{ID: "i", Payload: "p", Status: "sent"}}, nil},
		{"a lease that no claim writes", words(func(l *store.Layout) { l.Columns.Claimed, l.Lease = "until", true; delete(l.Words, store.Processing) }),
			[]string{"columns.lease needs a value for PROCESSING"}},
		{"a boolean without its column", store.Layout{Name: "t", State: store.StateBoolean, Columns: store.Columns{ID: "i", Payload: "p"}}, []string{"columns.status is not set"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.layout.Validate()
			if (err == nil) != (c.want == nil) {
				t.Fatalf("Validate: %v", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %q: %v", part, err)
				}
			}
		})
	}
}

func TestNamedColumns(t *testing.T) {
	l := store.OutboxMessages()
	l.OrderBy = append(l.OrderBy, "type")
	for column, want := range map[string]string{
		"id": "columns.id", "type": "columns.kind", "message_group": "columns.group", "updated_at": "columns.claimed",
		"created_at": "order-by", "no such column": "", "": "",
	} {
		if got := l.ConfigKey(column); got != want {
			t.Errorf("column %q is named by %q, want %q", column, got, want)
		}
	}

	if n := len(l.NamedColumns()); n != 10 {
		t.Errorf("%d columns are named: %v", n, l.NamedColumns())
	}
}

func TestFailedNumbers(t *testing.T) {
	l := store.OutboxMessages()
	for reason, want := range map[store.Reason]int{
		store.ReasonNone: 3, store.ReasonInternal: 3, store.ReasonBadRequest: 2,
		store.ReasonUnauthorized: 4, store.ReasonForbidden: 5, store.ReasonGateway: 6, 200: 3,
	} {
		if got := l.FailedNumber(reason); got != want {
			t.Errorf("reason %d is written as %d, want %d", reason, got, want)
		}
	}
	if got := l.SettledNumbers(); !slices.Equal(got, []int{1, 2, 3, 4, 5, 6}) {
		t.Errorf("settled numbers: %v", got)
	}
}

func TestSetupErrorText(t *testing.T) {
	if got := (&store.SetupError{Problem: "p", Remedy: "r"}).Error(); got != "p; r" {
		t.Errorf("%q", got)
	}
	if got := (&store.SetupError{Problem: "p"}).Error(); got != "p" {
		t.Errorf("%q", got)
	}
}

// TestFailedNumberOfTwoNumbers: a layout with two numbers leaves a FAILED row PENDING.
func TestFailedNumberOfTwoNumbers(t *testing.T) {
	l := store.Layout{State: store.StateNumbers, Numbers: map[store.Status]int{store.Pending: 1, store.Completed: 0}}
	if got := l.FailedNumber(store.ReasonInternal); got != 1 {
		t.Errorf("FAILED is written as %d, want 1", got)
	}
}
