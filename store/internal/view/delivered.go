package view

import (
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Delivered takes the COMPLETED rows that a snapshot reads, in order. A statement may
// leave out what its query does not choose, and need not: Add looks at all of it, but
// each row without a time must come, too.
type Delivered struct {
	store.Delivered

	ids, kinds map[string]struct{}
	groups     map[store.Group]struct{}
	pages      *Pages
	undated    int
}

// finest is the unit of the finest column of times.
const finest = time.Microsecond

// newDelivered raises the bounds of q to whole microseconds: to those columns it is all
// the same, and a statement may bind them.
func newDelivered(q store.Delivered, pages *Pages) *Delivered {
	q.Since, q.Until = raised(q.Since), raised(q.Until)
	return &Delivered{Delivered: q, ids: setOf(q.IDs), kinds: setOf(q.Kinds), groups: setOf(q.Groups), pages: pages}
}

func raised(t time.Time) time.Time {
	if cut := t.Truncate(finest); cut.Before(t) {
		return cut.Add(finest)
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

func among[T comparable](set map[T]struct{}, v T) bool {
	_, in := set[v]
	return in || len(set) == 0
}

// Size is how many rows a page has.
func (d *Delivered) Size() int { return d.pages.Size }

// Add adds a row, whose Committed is the time in order-by, zero if there is none. It
// reports whether more are wanted.
func (d *Delivered) Add(it store.Item) bool {
	switch at := it.Committed; {
	case !among(d.ids, it.ID), !among(d.kinds, it.Kind), !among(d.groups, it.Group):
	case at.IsZero():
		d.undated++
	case at.Before(d.Since), !d.Until.IsZero() && !at.Before(d.Until):
	default:
		return d.pages.Add(it)
	}
	return d.pages.more()
}
