package floor

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	// maxRowsInFlight is the maximum number of rows between the stream and their completion.
	maxRowsInFlight = 20_000
	// maxUncompleted is the same without claims. There nothing else holds back the requests, and
	// a drain would end long before its completions.
	maxUncompleted = 2 * maxStatementRows
)

// row is an inserted row.
type row struct {
	id, payload []byte
	txn         *transaction
}

// transaction is a transaction whose rows are not all read or completed.
type transaction struct {
	end        uint64 // its end in the log; 0 until that is read
	incomplete int    // rows read but not completed
}

// ledger tracks the position up to which all rows are completed.
type ledger struct {
	room *semaphore.Weighted

	mu   sync.Mutex
	open []*transaction // in log order
	done uint64
}

func newLedger(maxRows int) *ledger { return &ledger{room: semaphore.NewWeighted(int64(maxRows))} }

// begin adds a transaction.
func (l *ledger) begin() *transaction {
	t := &transaction{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, t)
	return t
}

// addRows adds rows of a transaction, with its end if they are the last. It waits until
// few enough rows are in flight.
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

// complete marks rows as completed.
func (l *ledger) complete(rows []row) {
	l.mu.Lock()
	for i := range rows {
		rows[i].txn.incomplete--
	}
	l.advance()
	l.mu.Unlock()
	l.room.Release(int64(len(rows)))
}

// advance moves past the completed transactions.
func (l *ledger) advance() {
	n := 0
	for n < len(l.open) && l.open[n].incomplete == 0 && l.open[n].end != 0 {
		l.done = l.open[n].end
		n++
	}
	l.open = l.open[n:]
}

// advanceIdle sets the position up to which the server has sent everything. It applies only
// if no row is in flight.
func (l *ledger) advanceIdle(at uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == 0 {
		l.done = max(l.done, at)
	}
}

// position returns the position up to which the server may discard the log.
func (l *ledger) position() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}
