package feed

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/sluicebox/sluicebox/capture/kafka/internal/record"
	"github.com/sluicebox/sluicebox/store"
)

// progress finds how far all partitions have the log. It implements checkpoint.Watermarks.
type progress struct {
	mu      sync.Mutex
	at      store.Checkpoint
	rows    int64 // below it
	acked   record.Acked
	queue   []*entry // batches in order, from the oldest that is not acknowledged
	changed chan struct{}
}

// entry is a batch.
type entry struct {
	position store.Position
	pending  int // records that are not acknowledged, and 1 until all are sent
	rows     int
}

func newProgress(epoch store.Epoch, partitions int) *progress {
	return &progress{changed: make(chan struct{}, 1), acked: record.Acked{Epoch: epoch, Numbers: make([]uint64, partitions)}}
}

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

// stored says that Kafka has the next record of a partition.
func (p *progress) stored(partition int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked.Numbers[partition]++
}

// added says that all records of the last batch were sent. A batch without records that wait joins the one
// before it: while Kafka is down, a quiet database has many positions without rows.
func (p *progress) added(e *entry, rows int) {
	p.mu.Lock()
	e.rows = rows
	if last := len(p.queue) - 1; last > 0 && e.pending == 1 {
		before := p.queue[last-1]
		before.rows += rows
		before.position = cmp.Or(e.position, before.position)
		p.queue[last], p.queue = nil, p.queue[:last]
	}
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

// Watermark returns the position up to which all partitions have the rows, and as marks of legs the
// records of each partition that Kafka has.
func (p *progress) Watermark() (at store.Checkpoint, rows int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at = p.at
	at.Legs = marksOf(p.acked)
	return at, p.rows
}

// A checkpoint has a mark for each partition, under a name that no leg has. Its position is an epoch and
// a number.
func markName(partition int) string { return fmt.Sprintf("partition %d", partition) }

func marksOf(acked record.Acked) map[string]store.LegMark {
	marks := make(map[string]store.LegMark, len(acked.Numbers))
	for i, n := range acked.Numbers {
		marks[markName(i)] = store.LegMark{Position: store.Position(fmt.Sprintf("%d/%d", acked.Epoch, n))}
	}
	return marks
}

// ackedOf reads the marks of a checkpoint. Without them it rests on nothing.
func ackedOf(at store.Checkpoint) (acked record.Acked) {
	for i := range len(at.Legs) {
		var n uint64
		if _, err := fmt.Sscanf(string(at.Legs[markName(i)].Position), "%d/%d", &acked.Epoch, &n); err != nil {
			return record.Acked{}
		}
		acked.Numbers = append(acked.Numbers, n)
	}
	return acked
}

// Changed implements checkpoint.Watermarks.
func (p *progress) Changed() <-chan struct{} { return p.changed }
