package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// letterRow is a row that the suite makes FAILED.
type letterRow struct {
	Row
	text string
	at   time.Time
}

// fail inserts rows and makes each FAILED with its error, at its time.
func (b *bench) fail(t *testing.T, outbox string, letters ...letterRow) {
	t.Helper()
	var rows []Row
	var ids []string
	var outcomes []store.Outcome
	for i, l := range letters {
		rows, ids = append(rows, l.Row), append(ids, l.ID)
		reason := store.Reason(i % int(store.ReasonInternal+1)) // all codes in turn
		outcomes = append(outcomes, store.Outcome{
			Ref: ref(outbox, l.ID), Status: store.Failed, RetryCount: i % 7, Error: l.text, Reason: reason, At: l.at,
		})
	}

	b.insert(t, outbox, rows...)
	b.take(t, outbox, ids...)
	b.settle(t, outcomes...)
}

func (b *bench) failed(t *testing.T, f store.DeadLetterFilter, limit int, payload bool) []store.DeadLetter {
	t.Helper()
	letters, err := b.store.Failed(b.ctx(t), f, limit, payload)
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

func (b *bench) count(t *testing.T, f store.DeadLetterFilter) int {
	t.Helper()
	n, err := b.store.CountFailed(b.ctx(t), f)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func letterIDs(letters []store.DeadLetter) []string {
	list := []string{}
	for i := range letters {
		list = append(list, letters[i].ID)
	}
	return list
}

// oddLetters returns FAILED rows whose groups and texts a careless filter would confuse.
// They are in the layout's order-by.
func oddLetters() []letterRow {
	groups := []store.Group{
		{}, store.GroupOf(""), store.GroupOf("a/b"), store.GroupOf("a"), store.GroupOf("A"), store.GroupOf("a "),
		store.GroupOf("a"), store.GroupOf("%"), store.GroupOf("x_z"), store.GroupOf("xyz"), store.GroupOf(`'"\`), {},
	}
	texts := []string{
		"100% sure", "100 sure", "a_b", "axb", `back\slash`, "Snow ☃", "snow ☃", "", "quote ' and \" $1", "line\nbreak", "100% sure", "",
	}
	list := make([]letterRow, len(groups))
	for i := range list {
		r := row(fmt.Sprintf("id %c", 'z'-i)) // descending ids
		r.Kind, r.Group, r.Created = "KIND-A", groups[i], origin().Add(time.Duration(i)*time.Minute)
		if i%2 == 1 {
			r.Kind = "kind-a"
		}
		list[i] = letterRow{r, texts[i], origin().Add(time.Duration(100-i) * time.Hour)}
	}

	return list
}

// letterFilter is a filter and the rows that it must select.
type letterFilter struct {
	filter store.DeadLetterFilter
	chosen func(letterRow) bool
}

// filters returns filters of every kind that the layout supports.
func (s *suite) filters() []letterFilter {
	c := &s.layout.Columns
	kinds := []string{"KIND-A", "kind-a", "EVENT", "KIND_A", "' OR true --"}
	groups := append([]store.Group{store.GroupOf("none has it"), store.GroupOf("NULL"), store.GroupOf(" a")}, groupsOf(oddLetters())...)
	parts := []string{"100%", "%", "_", "a_b", `\`, "snow", "Snow ☃", "'", `"`, "$1", "\nb", "sure", "none has it"}
	if !many(&s.layout) { // the statements of the other layouts differ only in their columns
		kinds, groups, parts = kinds[:3:3], []store.Group{{}, store.GroupOf("a"), store.GroupOf("")}, parts[:2]
	}
	list := []letterFilter{
		{store.DeadLetterFilter{}, func(letterRow) bool { return true }},
		{store.DeadLetterFilter{IDs: []string{"id z", "id x", "no such id", `"quoted",{}\`, "ID Y"}}, func(l letterRow) bool { return l.ID == "id z" || l.ID == "id x" }},
		{store.DeadLetterFilter{IDs: []string{"no such id"}}, func(letterRow) bool { return false }},
	}
	for _, kind := range kinds {
		list = append(list, letterFilter{store.DeadLetterFilter{Kind: kind}, func(l letterRow) bool {
			return c.Kind != "" && l.Kind == kind || c.Kind == "" && kind == "EVENT"
		}})
	}

	for _, g := range groups {
		list = append(list, letterFilter{store.DeadLetterFilter{Group: &g}, func(l letterRow) bool { return l.Group == g }})
	}

	if c.Error != "" {
		for _, part := range parts {
			list = append(list, letterFilter{store.DeadLetterFilter{Error: part}, func(l letterRow) bool { return strings.Contains(l.text, part) }})
		}
	}

	if s.layout.FailedTime() != "" {
		since, until := origin().Add(93*time.Hour), origin().Add(97*time.Hour)
		list = append(list,
			letterFilter{store.DeadLetterFilter{Since: since}, func(l letterRow) bool { return !l.at.Before(since) }},
			letterFilter{store.DeadLetterFilter{Until: until.In(time.FixedZone("far", 9*3600))}, func(l letterRow) bool { return l.at.Before(until) }},
			letterFilter{store.DeadLetterFilter{Since: since, Until: until}, func(l letterRow) bool { return !l.at.Before(since) && l.at.Before(until) }},
		)
	}

	if c.Error != "" && s.layout.FailedTime() != "" {
		none, until := store.Group{}, origin().Add(100*time.Hour)
		f := store.DeadLetterFilter{Error: "100%", Group: &none, Until: until.Add(time.Second), IDs: []string{"id z", "id o", "id p"}}
		list = append(list, letterFilter{f, func(l letterRow) bool { return l.ID == "id z" }})
	}

	return list
}

func groupsOf(letters []letterRow) []store.Group {
	var list []store.Group
	for _, l := range letters {
		if !slices.Contains(list, l.Group) {
			list = append(list, l.Group)
		}
	}
	return list
}

// testFailed reads and counts with every filter.
func (s *suite) testFailed(t *testing.T) {
	b := s.start(t, 0)
	letters := oddLetters()
	b.fail(t, "a", letters...)
	b.failOthers(t)
	for _, f := range s.filters() {
		f.filter.Outbox = "a"
		var want []string
		for _, l := range letters {
			if f.chosen(l) {
				want = append(want, l.ID)
			}
		}
		limits := []int{1 << 30}
		if len(want) > 3 {
			limits = append(limits, 3)
		}
		for _, limit := range limits {
			got := letterIDs(b.failed(t, f.filter, limit, false))
			if !slices.Equal(got, want[:min(limit, len(want))]) {
				t.Errorf("%+v (group %v), limit %d: %q, want %q", f.filter, f.filter.Group, limit, got, want)
			}
		}
		if n := b.count(t, f.filter); n != len(want) {
			t.Errorf("%+v (group %v): %d are counted, want %d", f.filter, f.filter.Group, n, len(want))
		}
	}

	var each []store.DeadLetter
	if err := b.store.EachFailed(b.ctx(t), store.DeadLetterFilter{Outbox: "a"}, func(d *store.DeadLetter) { each = append(each, *d) }); err != nil {
		t.Fatal(err)
	}

	b.checkLetters(t, letters, each, false)
	for _, payload := range []bool{false, true} {
		b.checkLetters(t, letters, b.failed(t, store.DeadLetterFilter{Outbox: "a"}, 100, payload), payload)
	}

	if n := b.count(t, store.DeadLetterFilter{Outbox: "b"}); n != 1 {
		t.Errorf("the other outbox has %d", n)
	}
}

// failOthers makes rows that no filter selects, and one row of another outbox.
func (b *bench) failOthers(t *testing.T) {
	t.Helper()
	b.insert(t, "a", row("pending"), row("taken"), row("completed"))
	b.take(t, "a", "taken", "completed")
	b.settle(t, store.Outcome{Ref: ref("a", "completed"), Status: store.Completed, At: now()})
	b.fail(t, "b", letterRow{row("id z"), "100% sure", now()})
}

// checkLetters compares all fields of the rows of oddLetters.
func (b *bench) checkLetters(t *testing.T, want []letterRow, got []store.DeadLetter, payload bool) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d letters, want %d", len(got), len(want))
	}

	c := &b.layout.Columns
	for i, l := range want {
		d := got[i]
		kind, text, retries := "EVENT", "", 0
		if c.Kind != "" {
			kind = l.Kind
		}
		if c.Error != "" {
			text = l.text
		}
		if c.RetryCount != "" {
			retries = i % 7
		}
		if d.Ref != ref("a", l.ID) || d.Kind != kind || d.Group != l.Group || d.Error != text || d.RetryCount != retries {
			t.Errorf("letter %d is %+v, want %+v", i, d, l)
		}
		if b.layout.FailedTime() == "" && !d.FailedAt.IsZero() || b.layout.FailedTime() != "" && !d.FailedAt.Equal(l.at) {
			t.Errorf("letter %d FAILED at %s, want %s", i, d.FailedAt, l.at)
		}
		if d.PayloadSize != len(l.Payload) || payload && string(d.Payload) != l.Payload || !payload && d.Payload != nil {
			t.Errorf("letter %d: payload %q of %d bytes, want %q", i, d.Payload, d.PayloadSize, l.Payload)
		}
	}
}

// testLettersRefused: invalid filters are rejected by name.
func (s *suite) testLettersRefused(t *testing.T) {
	b := s.start(t, 0)
	try := func(f store.DeadLetterFilter, limit int) map[string]error {
		return map[string]error{
			"failed":  second(b.store.Failed(b.ctx(t), f, limit, true)),
			"requeue": second(b.store.Requeue(b.ctx(t), b.epoch, f, limit)),
			"discard": second(b.store.Discard(b.ctx(t), b.epoch, f, limit)),
		}
	}

	want := func(f store.DeadLetterFilter, limit int, part string) {
		t.Helper()
		errs := try(f, limit)
		if limit > 0 {
			errs["count"] = second(b.store.CountFailed(b.ctx(t), f))
		}
		for what, err := range errs {
			if err == nil || errors.Is(err, store.ErrNotLeader) || !strings.Contains(err.Error(), part) {
				t.Errorf("%s by %+v, limit %d: %v, want %q", what, f, limit, err, part)
			}
		}
	}
	want(store.DeadLetterFilter{}, 1, "no outbox")
	want(store.DeadLetterFilter{Outbox: "c"}, 1, `no outbox "c"`)
	want(store.DeadLetterFilter{Outbox: "a"}, 0, "limit")
	want(store.DeadLetterFilter{Outbox: "a"}, -1, "limit")
	want(store.DeadLetterFilter{Outbox: "a", Since: now(), Until: now().Add(-time.Second)}, 1, "outbox a")
	if s.stateful() && s.layout.Columns.Error == "" {
		want(store.DeadLetterFilter{Outbox: "a", Error: "x"}, 1, "no error column")
	}
}

// testLettersClosed: a closed store returns errors.
func (s *suite) testLettersClosed(t *testing.T) {
	b := s.start(t, 0)
	b.store.Close()
	f := store.DeadLetterFilter{Outbox: "a"}
	h := store.Hold{Lane: lane("a", "EVENT", store.Group{}), Kind: store.Paused}
	for what, err := range map[string]error{
		"count":   second(b.store.CountFailed(b.ctx(t), f)),
		"failed":  second(b.store.Failed(b.ctx(t), f, 1, false)),
		"requeue": second(b.store.Requeue(b.ctx(t), b.epoch, f, 1)),
		"discard": second(b.store.Discard(b.ctx(t), b.epoch, f, 1)),
		"load":    second(b.store.LoadHolds(b.ctx(t))),
		"hold":    b.store.Hold(b.ctx(t), b.epoch, h),
		"release": b.store.Release(b.ctx(t), b.epoch, h.Lane, h.Kind),
	} {
		if err == nil || errors.Is(err, store.ErrNotLeader) {
			t.Errorf("%s on a closed store: %v", what, err)
		}
	}
}
