package store

import (
	"slices"
	"strings"
	"testing"
)

// TestLegRule: the ends of the legs of a row, and the status that they give it. A ! means FAILED, and a leg in
// brackets has not ended.
func TestLegRule(t *testing.T) {
	for _, c := range []struct {
		routes, legs string
		needed       string
		want         Status
	}{
		{"a b", "a b", "a b", Completed},
		{"a b", "a b!", "a b", Failed},
		{"a b", "a! (b)", "a b", 0}, // what b does is not lost with a
		{"a b", "a (b)", "a b", 0},
		{"a b", "b", "b", Completed},
		{"a b?", "a (b)", "a", Completed},
		{"a b?", "a b!", "a", Completed},
		{"a b?", "a! b", "a", Failed},
		{"a b?", "(a) b", "a", 0},
		{"a b?", "b", "b", Completed},
		{"a b?", "b!", "b", Failed},
		{"any: a b", "a (b)", "a b", Completed},
		{"any: a b", "a! (b)", "a b", 0},
		{"any: a b", "a! b", "a b", Completed},
		{"any: a b", "a! b!", "a b", Failed},
		{"any: a b c?", "a! b! c", "a b", Failed},
		{"any: a b c?", "c", "c", Completed},
		{"a? b?", "a! (b)", "a b", 0},
		{"a? b?", "(a) b", "a b", Completed},
		{"a? b?", "a! b!", "a b", Failed},
		{"a b", "", "", 0},
	} {
		var o Outbox
		var routes string
		routes, o.AnyRequired = strings.CutPrefix(c.routes, "any: ")
		for _, name := range strings.Fields(routes) {
			name, optional := strings.CutSuffix(name, "?")
			o.Routes = append(o.Routes, Route{Name: name, Optional: optional})
		}
		var matched, done, failed LegSet
		for _, end := range strings.Fields(c.legs) {
			leg := o.RouteSet([]string{strings.Trim(end, "()!")})
			switch matched |= leg; {
			case strings.HasSuffix(end, "!"):
				failed |= leg
			case !strings.HasPrefix(end, "("):
				done |= leg
			}
		}
		legs, _ := o.LegRule().Needed(matched)
		var needed []string
		for i := range legs.All() {
			needed = append(needed, o.Routes[i].Name)
		}
		if got := o.LegRule().Verdict(matched, done, failed); got != c.want || !slices.Equal(needed, strings.Fields(c.needed)) {
			t.Errorf("%s: %s: %q decide, and the row is %s; want %q and %s", c.routes, c.legs, needed, got, c.needed, c.want)
		}
	}
}
