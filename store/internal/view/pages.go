package view

import "github.com/sluicebox/sluicebox/store"

// Pages hands over the rows that a snapshot reads.
type Pages struct {
	// Size is the most rows of a page.
	Size int

	most    int64 // bytes that end a page, 0 for any number
	bytes   int64 // of the page that is being filled
	left    int   // how many more are wanted
	take    func([]store.Item) error
	items   []store.Item // the page that is being filled
	refused error        // by take: it is no fault of the snapshot
}

// Add adds a row, and reports whether more are wanted.
func (p *Pages) Add(it store.Item) bool {
	p.items = append(p.items, it)
	p.bytes += int64(it.Bytes())
	p.left--
	if len(p.items) == p.Size || p.most > 0 && p.bytes >= p.most {
		p.flush()
	}
	return p.more()
}

func (p *Pages) more() bool { return p.left > 0 && p.refused == nil }

// flush hands over what is there.
func (p *Pages) flush() {
	if full := p.items; len(full) > 0 && p.refused == nil {
		p.items, p.bytes = nil, 0
		p.refused = p.take(full)
	}
}
