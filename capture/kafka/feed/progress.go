package feed

import (
	"sync"

	"github.com/sluicebox/sluicebox/store"
)

// progress finds how far all partitions have the log. It implements checkpoint.Watermarks.
type progress struct {
	mu      sync.Mutex
	at      store.Checkpoint
	rows    int64    // below it
	queue   []*entry // batches in order, from the oldest that is not acknowledged
	changed chan struct{}
}

// entry is a batch.
type entry struct {
	position store.Position
	pending  int // records that are not acknowledged, and 1 until all are sent
	rows     int
}

func newProgress() *progress { return &progress{changed: make(chan struct{}, 1)} }

func (p *progress) begin(at store.Checkpoint) { p.at = at }

// add adds a batch that ends at a position, "" if its transaction goes on. For the records of no batch,
// added need not be called.
func (p *progress) add(position store.Position) *entry {
	e := &entry{position: position, pending: 1}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, e)
	return e
}

// sent counts a record of a batch, before it is appended.
func (p *progress) sent(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.pending++
}

// added says that all records of a batch were sent.
func (p *progress) added(e *entry, rows int) {
	p.mu.Lock()
	e.rows = rows
	p.mu.Unlock()
	p.acknowledged(e)
}

// acknowledged says that Kafka has a record.
func (p *progress) acknowledged(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.pending--; e.pending > 0 {
		return
	}
	n, moved := 0, false
	for ; n < len(p.queue) && p.queue[n].pending == 0; n++ {
		p.rows += int64(p.queue[n].rows)
		if at := p.queue[n].position; at != "" {
			p.at.Position, moved = at, true
		}
		p.queue[n] = nil
	}
	p.queue = p.queue[n:]
	if moved {
		select {
		case p.changed <- struct{}{}:
		default:
		}
	}
}

// Watermark returns the position up to which all partitions have the rows.
func (p *progress) Watermark() (at store.Checkpoint, rows int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at, p.rows
}

// Changed implements checkpoint.Watermarks.
func (p *progress) Changed() <-chan struct{} { return p.changed }
