package route

import (
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Reason says whether a row takes a route, and why.
type Reason struct {
	Matched bool

	// Text lists the conditions that decided, for example "type is OrderPaid" or "tags vip, a=1:
	// no order_id".
	Text string
}

// Explain returns the reason for each route, in their order. The routes that Match returns are those
// that matched.
func (r *Router) Explain(it *store.Item) []Reason {
	reasons := make([]Reason, len(r.rules))
	taken := -1
	for i := range r.rules {
		if taken >= 0 && r.first {
			reasons[i].Text = fmt.Sprintf("not tried: routes[%d] took the row (fan-out: first)", taken)
			continue
		}
		if reasons[i] = r.rules[i].explain(it); reasons[i].Matched {
			taken = i
		}
	}
	return reasons
}

// explanation collects the conditions that hold, and those that do not.
type explanation struct{ met, unmet []string }

func (e *explanation) add(met bool, format string, args ...any) {
	to := &e.unmet
	if met {
		to = &e.met
	}
	*to = append(*to, fmt.Sprintf(format, args...))
}

// explain names the conditions that do not hold or, if there are none, those that do.
func (c *rule) explain(it *store.Item) Reason {
	var e explanation
	if len(c.Kind) > 0 {
		e.value(store.AttributeKind, it.OwnKind(), it.OwnKind() != "", c.Kind)
	}
	if len(c.Type) > 0 {
		value, has := it.Attributes.Get(store.AttributeType)
		e.value(store.AttributeType, value, has, c.Type)
	}
	for i := range c.attributes {
		a := &c.attributes[i]
		value, has := it.Attributes.Get(a.name)
		e.value("attribute "+a.name, value, has, a.values)
	}
	if c.usesTags {
		e.tags(c, it)
	}
	switch {
	case len(e.unmet) > 0:
		return Reason{Text: strings.Join(e.unmet, "; ")}
	case len(e.met) == 0:
		return Reason{Matched: true, Text: "matches every row"}
	}
	return Reason{Matched: true, Text: strings.Join(e.met, "; ")}
}

// value explains a condition on one value.
func (e *explanation) value(name, value string, has bool, want []string) {
	switch {
	case !has:
		e.add(false, "no %s, must be %s", name, strings.Join(want, " or "))
	case within([]string{value}, want):
		e.add(true, "%s is %s", name, value)
	default:
		e.add(false, "%s is %s, not %s", name, value, strings.Join(want, " or "))
	}
}

// tags explains the conditions on the tags.
func (e *explanation) tags(c *rule, it *store.Item) {
	tags := appendTagsOf(nil, it, c.tagsFrom)
	have := "no " + c.tagsFrom
	if len(tags) > 0 {
		have = c.tagsFrom + " " + strings.Join(tags, ", ")
	}
	for _, want := range c.TagsExact {
		exact := rule{Rule: Rule{TagsExact: []string{want}}}
		e.tag(exact.matchesTags(tags), have, "exactly "+want)
	}
	for _, want := range c.TagsAll {
		e.tag(containsTag(tags, want), have, want)
	}
	if len(c.TagsAny) > 0 {
		anyOf := rule{Rule: Rule{TagsAny: c.TagsAny}}
		e.tag(anyOf.matchesTags(tags), have, strings.Join(c.TagsAny, " or "))
	}
}

func (e *explanation) tag(met bool, have, want string) {
	if met {
		e.add(true, "has tag %s", want)
		return
	}
	e.add(false, "%s: no tag %s", have, want)
}
