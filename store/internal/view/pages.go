package view

import "github.com/sluicebox/sluicebox/store"

// Pages hands over the rows that a snapshot reads.
type Pages struct {
	// Size is the most rows of a page.
	Size int

	left    int // how many more are wanted
	take    func([]store.Item) error
	items   []store.Item // the page that is being filled
	refused error        // by take: it is no fault of the snapshot
}

// Add adds a row, and reports whether more are wanted.
func (p *Pages) Add(it store.Item) bool {
	p.items = append(p.items, it)
	p.left--
	if len(p.items) == p.Size {
		p.flush()
	}
	return p.more()
}

// Hand hands a page over, at most as many rows of it as are wanted, and reports
// whether more are. It is not to be mixed with Add.
func (p *Pages) Hand(page []store.Item) bool {
	p.items = page[:min(len(page), p.left)]
	p.left -= len(p.items)
	p.flush()
	return p.more()
}

func (p *Pages) more() bool { return p.left > 0 && p.refused == nil }

// flush hands over what is there.
func (p *Pages) flush() {
	if full := p.items; len(full) > 0 && p.refused == nil {
		p.items = nil
		p.refused = p.take(full)
	}
}
