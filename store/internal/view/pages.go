package view

import "github.com/sluicebox/sluicebox/store"

// Pages passes the rows that a snapshot reads to a consumer, in pages.
type Pages struct {
	// Size is the maximum number of rows in a page.
	Size int

	maxBytes   int64 // page size in bytes, 0 for no limit
	bytes      int64 // size of the current page
	remaining  int   // rows still wanted
	consume    func([]store.Item) error
	items      []store.Item // current page
	consumeErr error        // returned by consume; not an error of the snapshot
}

// Add adds a row and reports whether more rows are wanted.
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

// flush passes the current page to the consumer.
func (p *Pages) flush() {
	if full := p.items; len(full) > 0 && p.consumeErr == nil {
		p.items, p.bytes = nil, 0
		p.consumeErr = p.consume(full)
	}
}
