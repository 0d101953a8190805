package admin

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// query reads the parameters of a request's URL and keeps the first error.
type query struct {
	remaining url.Values
	known     []string
	err       error
}

func newQuery(u *url.URL) *query {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return &query{err: badRequest("parse query parameters: %s", err)}
	}
	return &query{remaining: values}
}

func (q *query) addError(format string, args ...any) {
	if q.err == nil {
		q.err = badRequest(format, args...)
	}
}

// values returns all values of a parameter.
func (q *query) values(name string) []string {
	values := q.remaining[name]
	delete(q.remaining, name)
	q.known = append(q.known, name)
	return values
}

// value returns the value of a parameter and whether it is given.
func (q *query) value(name string) (value string, given bool) {
	values := q.values(name)
	if len(values) > 1 {
		q.addError("%s is given more than once", name)
	}
	if len(values) == 0 {
		return "", false
	}
	return values[0], true
}

func (q *query) text(name string) string {
	value, _ := q.value(name)
	return value
}

// enum returns one of the listed texts, or "" if the parameter is not given.
func (q *query) enum(name string, list []string) string {
	value, given := q.value(name)
	if given && !slices.Contains(list, value) {
		q.addError("%s is %q, must be one of %s", name, value, strings.Join(list, ", "))
	}
	return value
}

// flag is true for name, name=true and name=1.
func (q *query) flag(name string) bool {
	value, given := q.value(name)
	if !given || value == "" {
		return given
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		q.addError("%s is %q, must be true or false", name, value)
	}
	return on
}

// group returns nil for all groups.
func (q *query) group() *store.Group {
	name, given := q.value("group")
	none := q.flag("no-group")
	switch {
	case given && none:
		q.addError("group and no-group are both given; use one of them")
	case given:
		return &store.Group{Name: name, Valid: true}
	case none:
		return &store.Group{}
	}
	return nil
}

// limit returns a number between 1 and most.
func (q *query) limit(usual, most int) int {
	value, given := q.value("limit")
	if !given {
		return usual
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > most {
		q.addError("limit is %q, must be between 1 and %d", value, most)
	}
	return n
}

// time returns the zero time if the parameter is not given.
func (q *query) time(name string) time.Time {
	value, given := q.value(name)
	if !given {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		q.addError("%s is %q, must be a time such as 2026-01-31T15:04:05Z", name, value)
	}
	return t
}

// finish returns the first error. A parameter that was not read is unknown, and an error.
func (q *query) finish() error {
	for _, name := range slices.Sorted(maps.Keys(q.remaining)) {
		q.addError("unknown parameter %q; the parameters are %s", name, strings.Join(q.known, ", "))
	}
	return q.err
}
