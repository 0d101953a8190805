package dispatch

import (
	"bytes"
	"math"
	"slices"
	"sort"

	"github.com/sluicebox/sluicebox/store"
)

// groupHash is what follows the kind in a lane's hash.
type groupHash [len(store.LaneHash{}) - len(store.KindHash{})]byte

func groupOf(h store.LaneHash) groupHash { return groupHash(h[len(store.KindHash{}):]) }

// laneSet is the lanes of one kind with the number of their rows, in the order of
// their hashes. A lane takes some 30 bytes: millions may be away.
type laneSet struct {
	pages [][]laneEntry // none is empty
	n     int
}

type laneEntry struct {
	hash groupHash
	rows uint32
}

// maxPage is the most lanes of a page.
const maxPage = 256

// find returns where a hash stands, or would stand.
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

// put notes how many rows a lane has, and returns how many it had.
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

// remove removes a lane, and returns how many rows it had.
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

// merge makes one page of two that have few lanes.
func (s *laneSet) merge(page int) bool {
	next := page + 1
	if next == len(s.pages) || len(s.pages[page])+len(s.pages[next]) > maxPage/2 {
		return false
	}
	s.pages[page] = append(s.pages[page], s.pages[next]...)
	s.pages = slices.Delete(s.pages, next, next+1)
	return true
}

// next returns the lane behind a hash, and behind the last one the first. The set must
// not be empty.
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
