package view

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// DeliveredRows receives the COMPLETED rows that a snapshot reads, in order. A statement
// may skip rows that its query does not select, but need not: Add applies the whole filter.
// The statement must not skip rows without a time, because Add counts them.
//
// If the kind is an attribute, the statement gives each row that attribute.
type DeliveredRows struct {
	store.DeliveredQuery

	ids, kinds map[string]struct{}
	groups     map[store.Group]struct{}
	pages      *Pages
	undated    int
}

// timeResolution is the resolution of the finest time columns.
const timeResolution = time.Microsecond

// newDeliveredRows rounds the times of q up to whole microseconds. That does not change the
// selected rows, and a statement may bind the rounded times.
func newDeliveredRows(q store.DeliveredQuery, pages *Pages) *DeliveredRows {
	q.Since, q.Until = roundUp(q.Since), roundUp(q.Until)
	return &DeliveredRows{DeliveredQuery: q, ids: setOf(q.IDs), kinds: setOf(q.Kinds), groups: setOf(q.Groups), pages: pages}
}

func roundUp(t time.Time) time.Time {
	if truncated := t.Truncate(timeResolution); truncated.Before(t) {
		return truncated.Add(timeResolution)
	}
	return t
}

func setOf[T comparable](list []T) map[T]struct{} {
	set := make(map[T]struct{}, len(list))
	for _, v := range list {
		set[v] = struct{}{}
	}
	return set
}

func inSet[T comparable](set map[T]struct{}, v T) bool {
	_, in := set[v]
	return in || len(set) == 0
}

// PageSize returns the number of rows in a page.
func (d *DeliveredRows) PageSize() int { return d.pages.Size }

// Add adds a row whose Committed is the time in order-by, zero if it has none. It reports
// whether more rows are wanted.
func (d *DeliveredRows) Add(it store.Item) bool {
	kind := it.OwnKind()
	it.DropContent() // attributes are read again with the payload
	switch at := it.Committed; {
	case !inSet(d.ids, it.ID), !inSet(d.kinds, kind), !inSet(d.groups, it.Group):
	case at.IsZero():
		d.undated++
	case at.Before(d.Since), !d.Until.IsZero() && !at.Before(d.Until):
	default:
		return d.pages.Add(it)
	}
	return d.pages.wantsMore()
}
