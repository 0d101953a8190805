package route_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
)

// row returns a row with attributes in pairs of name and value.
func row(kind string, pairs ...string) *store.Item {
	it := &store.Item{Kind: kind}
	for i := 0; i < len(pairs); i += 2 {
		it.Attributes = append(it.Attributes, store.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return it
}

func compile(t testing.TB, first bool, rules ...route.Rule) *route.Router {
	t.Helper()
	r, err := route.Compile(rules, first)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMatch(t *testing.T) {
	paid := row("order", "type", "OrderPaid", "tenant", "a", "tags", "{order_id=5,vip}")
	for _, tt := range []struct {
		name string
		rule route.Rule
		it   *store.Item
		want bool
	}{
		{"no condition", route.Rule{}, paid, true},
		{"the lane's kind", route.Rule{Kind: []string{"order"}}, paid, true},
		{"the row's own kind comes first", route.Rule{Kind: []string{"order"}}, row("order", "kind", "invoice"), false},
		{"one of the types", route.Rule{Type: []string{"OrderNew", "OrderPaid"}}, paid, true},
		{"another type", route.Rule{Type: []string{"orderpaid"}}, paid, false},
		{"no type", route.Rule{Type: []string{""}}, row("order"), false},
		{"an attribute", route.Rule{Attributes: map[string][]string{"tenant": {"b", "a"}, "type": {"OrderPaid"}}}, paid, true},
		{"one attribute of two", route.Rule{Attributes: map[string][]string{"tenant": {"a"}, "region": {"eu"}}}, paid, false},
		{"an empty attribute", route.Rule{Attributes: map[string][]string{"tenant": {""}}}, row("order", "tenant", ""), true},
		{"a key", route.Rule{TagsAll: []string{"order_id"}}, paid, true},
		{"a key that begins another", route.Rule{TagsAll: []string{"order"}}, paid, false},
		{"a bare tag", route.Rule{TagsAll: []string{"vip", "order_id"}}, paid, true},
		{"a key and value", route.Rule{TagsAll: []string{"order_id=5"}}, paid, true},
		{"another value", route.Rule{TagsAll: []string{"order_id=50"}}, paid, false},
		{"a value and more", route.Rule{TagsAll: []string{"a=1"}}, row("order", "tags", "a=1=2"), false},
		{"one of all is missing", route.Rule{TagsAll: []string{"vip", "customer"}}, paid, false},
		{"one of any", route.Rule{TagsAny: []string{"customer", "vip"}}, paid, true},
		{"none of any", route.Rule{TagsAny: []string{"customer", "order_id=6"}}, paid, false},
		{"exact tags", route.Rule{TagsExact: []string{"order_id=5", "vip"}}, paid, true},
		{"an exact tag is not a key", route.Rule{TagsExact: []string{"order_id"}}, paid, false},
		{"all and any", route.Rule{TagsAll: []string{"order_id"}, TagsAny: []string{"gold"}}, paid, false},
		{"another attribute", route.Rule{TagsAll: []string{"vip"}, TagsFrom: "labels"}, row("order", "tags", "x", "labels", `["vip"]`), true},
		{"no tags", route.Rule{TagsAny: []string{"vip"}}, row("order"), false},
		{"type and tags", route.Rule{Type: []string{"OrderNew"}, TagsAll: []string{"vip"}}, paid, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := compile(t, false, tt.rule).Match(tt.it) != 0; got != tt.want {
				t.Errorf("matches: got %t, want %t", got, tt.want)
			}
		})
	}
}

// TestFanOut: a row takes all routes that match it, or the first of them.
func TestFanOut(t *testing.T) {
	rules := []route.Rule{{Type: []string{"a"}}, {TagsAll: []string{"x"}}, {}, {TagsAll: []string{"y"}, TagsFrom: "more"}}
	for _, tt := range []struct {
		it         *store.Item
		all, first store.LegSet
	}{
		{row("k", "type", "a", "tags", "x", "more", "y"), 0b1111, 0b1},
		{row("k", "type", "b", "tags", "x", "more", "x"), 0b110, 0b10},
		{row("k"), 0b100, 0b100},
	} {
		if got := compile(t, false, rules...).Match(tt.it); got != tt.all {
			t.Errorf("%v: all: got %b, want %b", tt.it.Attributes, got, tt.all)
		}
		if got := compile(t, true, rules[:3]...).Match(tt.it); got != tt.first {
			t.Errorf("%v: first: got %b, want %b", tt.it.Attributes, got, tt.first)
		}
	}
	if got := compile(t, false, rules[0]).Match(row("k", "type", "b")); got != 0 {
		t.Errorf("no route: got %b, want none", got)
	}
}

func TestInvalidRules(t *testing.T) {
	many := make([]route.Rule, route.MaxRules+1)
	for _, tt := range []struct {
		name  string
		rules []route.Rule
		first bool
		want  string
	}{
		{"too many", many, false, "routes has 32 routes, must be at most 31"},
		{"an empty tag", []route.Rule{{}, {TagsAny: []string{"a", ""}}}, false, "routes[1].when.tags-any has an empty tag; remove it"},
		{"an attribute without values", []route.Rule{{Attributes: map[string][]string{"a": nil}}}, false, "routes[0].when.attributes.a has no value; write the values that match, or remove it"},
		{"tags-from alone", []route.Rule{{TagsFrom: "x"}}, false, "routes[0].when.tags-from needs tags-all, tags-any or tags-exact; add one, or remove it"},
		{"a route behind one that takes all", []route.Rule{{}, {Kind: []string{"a"}}}, true, "routes[1] never gets a row: routes[0] takes all of its rows (fan-out: first); place it before that route, or change a condition"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := route.Compile(tt.rules, tt.first); err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	if _, err := route.Compile(many[1:], false); err != nil {
		t.Error(err)
	}
}

func TestCovers(t *testing.T) {
	list := func(s ...string) []string { return s }
	for _, tt := range []struct {
		a, b route.Rule
		want bool
	}{
		{route.Rule{}, route.Rule{Kind: list("a")}, true},
		{route.Rule{Kind: list("a")}, route.Rule{}, false},
		{route.Rule{Kind: list("a", "b")}, route.Rule{Kind: list("b"), Type: list("x")}, true},
		{route.Rule{Type: list("a")}, route.Rule{Type: list("a", "b")}, false},
		{route.Rule{Attributes: map[string][]string{"t": list("1", "2")}}, route.Rule{Attributes: map[string][]string{"t": list("2"), "u": list("3")}}, true},
		{route.Rule{Attributes: map[string][]string{"t": list("1")}}, route.Rule{Attributes: map[string][]string{"u": list("1")}}, false},
		{route.Rule{TagsAll: list("a")}, route.Rule{TagsAll: list("a=1", "b")}, true},
		{route.Rule{TagsAll: list("a=1")}, route.Rule{TagsAll: list("a")}, false},
		{route.Rule{TagsAll: list("a")}, route.Rule{TagsExact: list("a=1")}, true},
		{route.Rule{TagsExact: list("a=1")}, route.Rule{TagsAll: list("a=1")}, true},
		{route.Rule{TagsExact: list("a")}, route.Rule{TagsAll: list("a")}, false},
		{route.Rule{TagsAny: list("a", "b")}, route.Rule{TagsAny: list("b=2", "a")}, true},
		{route.Rule{TagsAny: list("a")}, route.Rule{TagsAny: list("a", "b")}, false},
		{route.Rule{TagsAny: list("a", "b")}, route.Rule{TagsExact: list("b")}, true},
		{route.Rule{TagsAll: list("a")}, route.Rule{TagsAll: list("a"), TagsFrom: "x"}, false},
		{route.Rule{TagsAll: list("a"), TagsFrom: "tags"}, route.Rule{TagsAll: list("a")}, true},
	} {
		if got := tt.a.Covers(&tt.b); got != tt.want {
			t.Errorf("%+v covers %+v: got %t, want %t", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestExplain(t *testing.T) {
	rules := []route.Rule{
		{Kind: []string{"invoice"}, Type: []string{"OrderNew", "OrderPaid"}},
		{TagsExact: []string{"order_id"}, TagsAll: []string{"customer"}, TagsAny: []string{"a", "b"}},
		{Attributes: map[string][]string{"tenant": {"a"}}},
		{Type: []string{"OrderPaid"}, TagsAll: []string{"vip"}},
		{},
	}
	it := row("order", "type", "OrderPaid", "tags", "{order_id=5,vip}")
	want := []route.Reason{
		{Text: "kind is order, not invoice"},
		{Text: "tags order_id=5, vip: no tag exactly order_id; tags order_id=5, vip: no tag customer; tags order_id=5, vip: no tag a or b"},
		{Text: "no attribute tenant, must be a"},
		{Matched: true, Text: "type is OrderPaid; has tag vip"},
		{Matched: true, Text: "matches every row"},
	}
	if got := compile(t, false, rules...).Explain(it); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", lines(got), lines(want))
	}
	want[4] = route.Reason{Text: "not tried: routes[3] took the row (fan-out: first)"}
	if got := compile(t, true, rules...).Explain(it); !slices.Equal(got, want) {
		t.Errorf("first: got\n%s\nwant\n%s", lines(got), lines(want))
	}
}

func lines(reasons []route.Reason) string {
	var b strings.Builder
	for _, r := range reasons {
		fmt.Fprintf(&b, "%t %s\n", r.Matched, r.Text)
	}
	return b.String()
}

// TestMatchAllocatesNothing: Match runs for every captured row.
func TestMatchAllocatesNothing(t *testing.T) {
	rules := []route.Rule{{Kind: []string{"order"}}, {Type: []string{"x"}}, {Attributes: map[string][]string{"tenant": {"a"}}}}
	tagged := append(slices.Clone(rules), route.Rule{TagsAll: []string{"vip"}})
	for name, tt := range map[string]struct {
		rules []route.Rule
		it    *store.Item
	}{
		"values": {rules, row("order", "type", "y", "tenant", "a")},
		"array":  {tagged, row("order", "type", "y", "tags", `{order_id=5,"a b",vip}`)},
		"JSON":   {tagged, row("order", "type", "y", "tags", `["order_id=5", "vip"]`)},
		"list":   {tagged, row("order", "type", "y", "tags", "order_id=5, vip")},
	} {
		r := compile(t, false, tt.rules...)
		if n := testing.AllocsPerRun(100, func() { r.Match(tt.it) }); n != 0 {
			t.Errorf("%s: %v allocations per row, want 0", name, n)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	paid := row("order", "aggregate", "order", "type", "OrderPaid", "tenant", "a", "tags", "{order_id=5,customer_id=77,vip}")
	rules := []route.Rule{{}, {Type: []string{"OrderNew", "OrderPaid"}}, {Attributes: map[string][]string{"tenant": {"b", "c"}}}}
	for name, all := range map[string][]route.Rule{
		"values": rules,
		"tags":   append(slices.Clone(rules), route.Rule{TagsAll: []string{"order_id"}}, route.Rule{TagsAny: []string{"payment_id", "vip"}}),
	} {
		b.Run(name, func(b *testing.B) {
			r := compile(b, false, all...)
			b.ReportAllocs()
			for b.Loop() {
				r.Match(paid)
			}
		})
	}
}
