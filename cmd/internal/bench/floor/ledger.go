package floor

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// maxRowsInFlight is how many rows are between the stream and their completion at most.
const maxRowsInFlight = 20_000

// row is an inserted row.
type row struct {
	id, payload []byte
	txn         *transaction
}

// transaction is one whose rows are not all completed, or not all read.
type transaction struct {
	end        uint64 // where in the log it ends; 0 until that was read
	incomplete int    // rows that were read and are not completed
}

// ledger knows how far all rows are completed.
type ledger struct {
	room *semaphore.Weighted

	mu   sync.Mutex
	open []*transaction // in the order of the log
	done uint64
}

func newLedger() *ledger { return &ledger{room: semaphore.NewWeighted(maxRowsInFlight)} }

// begin adds a transaction.
func (l *ledger) begin() *transaction {
	t := &transaction{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, t)
	return t
}

// addRows adds rows of a transaction, with its end if they are the last. It waits
// for room.
func (l *ledger) addRows(ctx context.Context, t *transaction, rows int, end uint64) error {
	if err := l.room.Acquire(ctx, int64(rows)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.incomplete += rows
	t.end = end
	l.advance()
	return nil
}

// complete takes rows off.
func (l *ledger) complete(rows []row) {
	l.mu.Lock()
	for i := range rows {
		rows[i].txn.incomplete--
	}
	l.advance()
	l.mu.Unlock()
	l.room.Release(int64(len(rows)))
}

// advance moves on over the transactions that are done.
func (l *ledger) advance() {
	n := 0
	for n < len(l.open) && l.open[n].incomplete == 0 && l.open[n].end != 0 {
		l.done = l.open[n].end
		n++
	}
	l.open = l.open[n:]
}

// advanceIdle takes a position before which the server has sent everything. It counts
// if nothing is under way.
func (l *ledger) advanceIdle(at uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == 0 {
		l.done = max(l.done, at)
	}
}

// position is where the log may be let go up to.
func (l *ledger) position() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}
