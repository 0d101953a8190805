package view

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// TestPages: every page except the last has its full number of rows or bytes. No row is
// added beyond the wanted number, or after the consumer failed.
func TestPages(t *testing.T) {
	refusal := errors.New("no more")
	for name, c := range map[string]struct {
		left, refuseAt int
		bytes          int64 // page size; a row has 10
		want           string
	}{
		"added one by one":     {left: 7, want: "[3 3 1]"},
		"as many as there are": {left: 100, want: "[3 3 3 1]"},
		"refused":              {left: 7, refuseAt: 2, want: "[3 3]"},
		"by bytes":             {left: 7, bytes: 11, want: "[2 2 2 1]"},
		"a row at the least":   {left: 3, bytes: 1, want: "[1 1 1]"},
	} {
		t.Run(name, func(t *testing.T) {
			var sizes []int
			p := &Pages{Size: 3, maxBytes: c.bytes, remaining: c.left, consume: func(items []store.Item) error {
				if sizes = append(sizes, len(items)); len(sizes) == c.refuseAt {
					return refusal
				}
				return nil
			}}
			for n, more := 10, true; n > 0 && more; {
				n--
				more = p.Add(store.Item{Ref: store.Ref{ID: "id"}, Group: store.GroupOf("group"), Kind: "k", Payload: []byte("{}")})
			}
			p.flush()
			if got := fmt.Sprint(sizes); got != c.want || (c.refuseAt > 0) != errors.Is(p.consumeErr, refusal) {
				t.Errorf("pages of %s rows, %v, want %s", got, p.consumeErr, c.want)
			}
		})
	}
}
