// Package route decides which routes of an outbox a row takes. It is pure: a row goes in, a set of
// routes comes out.
//
// # Tags
//
// Rules may look at the tags of a row. The value of one attribute holds the tags, in one of these forms:
//
//   - a text[] of PostgreSQL as it is captured: {order_id=5,vip}
//   - a JSON array: ["order_id=5", "vip"]
//   - a list with commas: order_id=5, vip
//
// A tag is a key, or a key and a value with = between them. A tag of a rule that has no = stands for
// the key: order_id matches the tags order_id and order_id=5, but not order_id_old=5. With = it
// matches this key with this value only. TagsExact compares whole tags instead, so order_id there
// matches no order_id=5.
package route

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// Rule selects rows. A row matches if all conditions hold; a rule without conditions matches every
// row. The tags are the keys of the program's configuration file.
type Rule struct {
	// Kind: the row's kind is one of these; see store.Item.OwnKind.
	Kind []string `yaml:"kind" single:"true" doc:"The row's kind is this, or one of these."`

	// Type: the attribute type is one of these.
	Type []string `yaml:"type" single:"true" doc:"The row's event type (columns.type) is this, or one of these: [OrderPaid, OrderShipped]."`

	// Attributes: the row has each of these attributes, with one of these values.
	Attributes map[string][]string `yaml:"attributes" single:"true" doc:"The row has each of these attributes with this value, or with one of these: {tenant: [a, b], region: eu}."`

	// TagsAll: the row has each of these tags.
	TagsAll []string `yaml:"tags-all" doc:"The row has each of these tags. A tag without = stands for the key, whatever the value is: order_id matches the tag order_id=5. See [routes.md](routes.md#tags)."`

	// TagsAny: the row has at least one of these tags.
	TagsAny []string `yaml:"tags-any" doc:"The row has at least one of these tags, read as in tags-all."`

	// TagsExact: the row has each of these tags exactly as written.
	TagsExact []string `yaml:"tags-exact" doc:"The row has each of these tags exactly as written, key and value: order_id=5."`

	// TagsFrom is the attribute that holds the tags. "" is tags.
	TagsFrom string `yaml:"tags-from" doc:"The attribute that holds the tags: a text[] of PostgreSQL, a JSON array, or a list with commas. Default: tags."`
}

// DefaultTagsFrom is the attribute with the tags of a row if a rule names none.
const DefaultTagsFrom = "tags"

// Unmatched is the name of the route of rows that no rule matches. No other route may have it.
const Unmatched = "unmatched"

// MaxRules is the maximum number of rules. One leg of a store.LegSet is that of rows without a route.
const MaxRules = store.MaxRoutes - 1

// IsZero reports whether the rule has no condition.
func (r *Rule) IsZero() bool {
	return len(r.Kind)+len(r.Type)+len(r.Attributes) == 0 && !r.usesTags()
}

func (r *Rule) usesTags() bool { return len(r.TagsAll)+len(r.TagsAny)+len(r.TagsExact) > 0 }

// Needs returns the attributes that the rule looks at, without the kind, which an outbox may hold
// elsewhere.
func (r *Rule) Needs() []string {
	var names []string
	if len(r.Type) > 0 {
		names = append(names, store.AttributeType)
	}
	names = append(names, slices.Sorted(maps.Keys(r.Attributes))...)
	if r.usesTags() {
		names = append(names, r.tagsFrom())
	}
	return names
}

func (r *Rule) tagsFrom() string {
	if r.TagsFrom == "" {
		return DefaultTagsFrom
	}
	return r.TagsFrom
}

// Validate reports what is wrong with the rule as *store.FieldError, by the keys of the
// configuration.
func (r *Rule) Validate() error {
	var bad store.FieldErrors
	for _, name := range slices.Sorted(maps.Keys(r.Attributes)) {
		switch {
		case name == "":
			bad.Add("attributes", "has a value without a name; name the attribute")
		case len(r.Attributes[name]) == 0:
			bad.Add("attributes."+name, "has no value; write the values that match, or remove it")
		}
	}
	for _, list := range []struct {
		key  string
		tags []string
	}{{"tags-all", r.TagsAll}, {"tags-any", r.TagsAny}, {"tags-exact", r.TagsExact}} {
		if slices.Contains(list.tags, "") {
			bad.Add(list.key, "has an empty tag; remove it")
		}
	}
	if r.TagsFrom != "" && !r.usesTags() {
		bad.Add("tags-from", "needs tags-all, tags-any or tags-exact; add one, or remove it")
	}
	return bad.Err()
}

// Covers reports whether every row that matches other matches r too. It may miss that for rules
// that say the same in different conditions.
func (r *Rule) Covers(other *Rule) bool {
	if !within(other.Kind, r.Kind) || !within(other.Type, r.Type) {
		return false
	}
	for name, values := range r.Attributes {
		if theirs, has := other.Attributes[name]; !has || !within(theirs, values) {
			return false
		}
	}
	if !r.usesTags() {
		return true
	}
	if !other.usesTags() || r.tagsFrom() != other.tagsFrom() {
		return false
	}
	// A tag that rows of other have: a tag of a rule implies another that matches it.
	has := func(tag string) bool { return containsTag(other.TagsAll, tag) || containsTag(other.TagsExact, tag) }
	for _, tag := range r.TagsAll {
		if !has(tag) {
			return false
		}
	}
	for _, tag := range r.TagsExact {
		if !slices.Contains(other.TagsExact, tag) && (!hasValue(tag) || !slices.Contains(other.TagsAll, tag)) {
			return false
		}
	}
	if len(r.TagsAny) == 0 || slices.ContainsFunc(r.TagsAny, has) {
		return true
	}
	return len(other.TagsAny) > 0 && !slices.ContainsFunc(other.TagsAny, func(tag string) bool {
		return !slices.ContainsFunc(r.TagsAny, func(own string) bool { return matchesTag(own, tag) })
	})
}

// Excludes reports whether no row can match both rules, as far as their kinds, types and attributes
// tell.
func (r *Rule) Excludes(other *Rule) bool {
	if apart(r.Kind, other.Kind) || apart(r.Type, other.Type) {
		return true
	}
	for name, values := range r.Attributes {
		if apart(values, other.Attributes[name]) {
			return true
		}
	}
	return false
}

// apart reports whether two conditions on one value allow no value in common.
func apart(a, b []string) bool {
	return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(v string) bool { return slices.Contains(b, v) })
}

// within reports whether the values that a condition allows are among those of another. An empty
// condition allows all values.
func within(values, of []string) bool {
	if len(of) == 0 {
		return true
	}
	return len(values) > 0 && !slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(of, v) })
}

// matchesTag reports whether a tag of a row matches a tag of a rule.
func matchesTag(want, tag string) bool {
	rest, ok := strings.CutPrefix(tag, want)
	return ok && (rest == "" || rest[0] == '=' && !hasValue(want))
}

func hasValue(tag string) bool { return strings.IndexByte(tag, '=') >= 0 }

// containsTag reports whether one of the tags of a row matches a tag of a rule.
func containsTag(tags []string, want string) bool {
	return slices.ContainsFunc(tags, func(tag string) bool { return matchesTag(want, tag) })
}

// Router finds the routes of rows. It is safe for concurrent use.
type Router struct {
	rules []rule
	first bool
}

// rule is a compiled Rule.
type rule struct {
	Rule
	attributes []attribute // in the order of their names
	usesTags   bool
	tagsFrom   string
}

// attribute is a condition on an attribute.
type attribute struct {
	name   string
	values []string
}

// Compile returns the router of the rules of an outbox, in the order of its routes. With first, a
// row takes only the first route that matches it; then a rule that matches all rows of a later one is
// an error. The errors are *store.FieldError with keys of the outbox, for example
// routes[1].when.tags-from.
func Compile(rules []Rule, first bool) (*Router, error) {
	var bad store.FieldErrors
	if len(rules) > MaxRules {
		bad.Add("routes", "has %d routes, must be at most %d", len(rules), MaxRules)
	}
	r := &Router{first: first}
	for i := range rules {
		from := &rules[i]
		if err := from.Validate(); err != nil {
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				field := e.(*store.FieldError)
				bad.Add(fmt.Sprintf("routes[%d].when.%s", i, field.Key), "%s", field.Text)
			}
		}
		c := rule{Rule: *from, usesTags: from.usesTags(), tagsFrom: from.tagsFrom()}
		for _, name := range slices.Sorted(maps.Keys(from.Attributes)) {
			c.attributes = append(c.attributes, attribute{name, from.Attributes[name]})
		}
		if by := r.shadow(from); by >= 0 {
			bad.Add(fmt.Sprintf("routes[%d]", i), "never gets a row: routes[%d] takes all of its rows (fan-out: first); place it before that route, or change a condition", by)
		}
		r.rules = append(r.rules, c)
	}
	if err := bad.Err(); err != nil {
		return nil, err
	}
	return r, nil
}

// shadow returns the earlier rule that takes all rows of a rule, -1 if none does.
func (r *Router) shadow(of *Rule) int {
	if !r.first {
		return -1
	}
	return slices.IndexFunc(r.rules, func(c rule) bool { return c.Covers(of) })
}

// inlineTags is the number of tags for which Match needs no memory.
const inlineTags = 16

// Match returns the routes of a row; none is the empty set. The row must have its attributes.
func (r *Router) Match(it *store.Item) (set store.LegSet) {
	var memory [inlineTags]string
	tags, from := memory[:0], "" // the attribute that tags are from
	kind := it.OwnKind()
	for i := range r.rules {
		c := &r.rules[i]
		if !c.matchesValues(it, kind) {
			continue
		}
		if c.usesTags && from != c.tagsFrom {
			from = c.tagsFrom
			tags = appendTagsOf(tags[:0], it, from)
		}
		if c.usesTags && !c.matchesTags(tags) {
			continue
		}
		if set |= 1 << i; r.first {
			break
		}
	}
	return set
}

// matchesValues reports whether the conditions on the kind and the attributes hold.
func (c *rule) matchesValues(it *store.Item, kind string) bool {
	if len(c.Kind) > 0 && !slices.Contains(c.Kind, kind) || len(c.Type) > 0 && !has(it, store.AttributeType, c.Type) {
		return false
	}
	for i := range c.attributes {
		if !has(it, c.attributes[i].name, c.attributes[i].values) {
			return false
		}
	}
	return true
}

// has reports whether a row has an attribute with one of the values.
func has(it *store.Item, name string, values []string) bool {
	value, ok := it.Attributes.Get(name)
	return ok && slices.Contains(values, value)
}

// matchesTags reports whether the conditions on the tags hold.
func (c *rule) matchesTags(tags []string) bool {
	for _, want := range c.TagsExact {
		if !slices.Contains(tags, want) {
			return false
		}
	}
	for _, want := range c.TagsAll {
		if !containsTag(tags, want) {
			return false
		}
	}
	for _, want := range c.TagsAny {
		if containsTag(tags, want) {
			return true
		}
	}
	return len(c.TagsAny) == 0
}

// appendTagsOf appends the tags of a row in an attribute. It takes no pointer to the slice, so that the
// memory of Match stays on the stack.
func appendTagsOf(tags []string, it *store.Item, from string) []string {
	text, ok := it.Attributes.Get(from)
	if !ok {
		return tags
	}
	return AppendTags(tags, text)
}
