package spill

import (
	"bytes"
	"math"
	"slices"
	"sort"

	"github.com/sluicebox/sluicebox/store"
)

// groupHash is the part of a lane's hash after the kind.
type groupHash [len(store.LaneHash{}) - len(store.KindHash{})]byte

func groupOf(h store.LaneHash) groupHash { return groupHash(h[len(store.KindHash{}):]) }

// laneSet is a set of lanes of one kind, sorted by hash, with the number of rows in each. A
// lane takes about 30 bytes, because millions of lanes may be spilled.
type laneSet struct {
	pages [][]laneEntry // none is empty
	n     int
}

type laneEntry struct {
	hash groupHash
	rows uint32
}

// maxPage is the maximum number of lanes in a page.
const maxPage = 256

// find returns the position of a hash, or the position to insert it at.
func (s *laneSet) find(hash groupHash) (page, at int, there bool) {
	page = max(0, sort.Search(len(s.pages), func(i int) bool { return bytes.Compare(s.pages[i][0].hash[:], hash[:]) > 0 })-1)
	if page == len(s.pages) {
		return 0, 0, false
	}
	at, there = slices.BinarySearchFunc(s.pages[page], hash, func(e laneEntry, hash groupHash) int {
		return bytes.Compare(e.hash[:], hash[:])
	})
	return page, at, there
}

// put sets a lane's row count and returns the previous one.
func (s *laneSet) put(hash groupHash, rows int) (before int) {
	e := laneEntry{hash, uint32(min(max(0, rows), math.MaxUint32))}
	page, at, there := s.find(hash)
	switch {
	case there:
		before = int(s.pages[page][at].rows)
		s.pages[page][at] = e
		return before
	case len(s.pages) == 0:
		s.pages = [][]laneEntry{make([]laneEntry, 0, maxPage)}
	case len(s.pages[page]) < maxPage:
	case at == maxPage && page == len(s.pages)-1: // in order: the pages stay full
		s.pages = append(s.pages, make([]laneEntry, 0, maxPage))
		page, at = page+1, 0
	default:
		full := s.pages[page]
		upper := append(make([]laneEntry, 0, maxPage), full[maxPage/2:]...)
		s.pages[page] = full[:maxPage/2]
		s.pages = slices.Insert(s.pages, page+1, upper)
		if at > maxPage/2 {
			page, at = page+1, at-maxPage/2
		}
	}

	s.pages[page] = slices.Insert(s.pages[page], at, e)
	s.n++
	return 0
}

// remove removes a lane and returns its row count.
func (s *laneSet) remove(hash groupHash) (rows int, there bool) {
	page, at, there := s.find(hash)
	if !there {
		return 0, false
	}
	rows = int(s.pages[page][at].rows)
	s.pages[page] = slices.Delete(s.pages[page], at, at+1)
	s.n--
	if len(s.pages[page]) == 0 {
		s.pages = slices.Delete(s.pages, page, page+1)
		return rows, true
	}
	if !s.merge(page) && page > 0 {
		s.merge(page - 1)
	}
	return rows, true
}

// merge joins a page with the next one if both have few lanes.
func (s *laneSet) merge(page int) bool {
	next := page + 1
	if next == len(s.pages) || len(s.pages[page])+len(s.pages[next]) > maxPage/2 {
		return false
	}
	s.pages[page] = append(s.pages[page], s.pages[next]...)
	s.pages = slices.Delete(s.pages, next, next+1)
	return true
}

// next returns the lane after a hash, and wraps around after the last one. The set must not
// be empty.
func (s *laneSet) next(hash groupHash) groupHash {
	page, at, there := s.find(hash)
	if there {
		at++
	}
	if at == len(s.pages[page]) {
		page, at = (page+1)%len(s.pages), 0
	}
	return s.pages[page][at].hash
}
