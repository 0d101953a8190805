package view

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// TestPages: pages are full but for the last one, no more rows come than are wanted,
// and none after one was refused.
func TestPages(t *testing.T) {
	refusal := errors.New("no more")
	for name, c := range map[string]struct {
		left, refuseAt int
		hand           bool
		want           string
	}{
		"added one by one":     {left: 7, want: "[3 3 1]"},
		"as many as there are": {left: 100, want: "[3 3 3 1]"},
		"refused":              {left: 7, refuseAt: 2, want: "[3 3]"},
		"handed over":          {left: 7, hand: true, want: "[3 3 1]"},
		"a page refused":       {left: 7, refuseAt: 1, hand: true, want: "[3]"},
	} {
		t.Run(name, func(t *testing.T) {
			var sizes []int
			p := &Pages{Size: 3, left: c.left, take: func(items []store.Item) error {
				if sizes = append(sizes, len(items)); len(sizes) == c.refuseAt {
					return refusal
				}
				return nil
			}}
			for n, more := 10, true; n > 0 && more; {
				if c.hand {
					some := min(n, p.Size)
					n -= some
					more = p.Hand(make([]store.Item, some))
				} else {
					n--
					more = p.Add(store.Item{})
				}
			}
			p.flush()
			if got := fmt.Sprint(sizes); got != c.want || (c.refuseAt > 0) != errors.Is(p.refused, refusal) {
				t.Errorf("pages of %s rows, %v, want %s", got, p.refused, c.want)
			}
		})
	}
}
