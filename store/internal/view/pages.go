package view

import "github.com/sluicebox/sluicebox/store"

// Pages hands over the rows that a snapshot reads.
type Pages struct {
	// Size is the most rows of a page.
	Size int

	maxBytes   int64 // bytes that end a page, 0 for any number
	bytes      int64 // of the page that is being filled
	remaining  int   // how many more are wanted
	consume    func([]store.Item) error
	items      []store.Item // the page that is being filled
	consumeErr error        // by take: it is no fault of the snapshot
}

// Add adds a row, and reports whether more are wanted.
func (p *Pages) Add(it store.Item) bool {
	p.items = append(p.items, it)
	p.bytes += int64(it.Bytes())
	p.remaining--
	if len(p.items) == p.Size || p.maxBytes > 0 && p.bytes >= p.maxBytes {
		p.flush()
	}
	return p.wantsMore()
}

func (p *Pages) wantsMore() bool { return p.remaining > 0 && p.consumeErr == nil }

// flush hands over what is there.
func (p *Pages) flush() {
	if full := p.items; len(full) > 0 && p.consumeErr == nil {
		p.items, p.bytes = nil, 0
		p.consumeErr = p.consume(full)
	}
}
