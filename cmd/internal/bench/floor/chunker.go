package floor

import "context"

// arenaBytes is the size of an allocation that rows share.
const arenaBytes = 64 << 10

// arena holds copies of values from a read buffer.
type arena []byte

func (a *arena) add(value []byte) []byte {
	if cap(*a)-len(*a) < len(value) {
		*a = make([]byte, 0, max(arenaBytes, len(value)))
	}
	from := len(*a)
	*a = append(*a, value...)
	return (*a)[from:len(*a):len(*a)]
}

// chunker collects the rows of a transaction and emits them in chunks.
type chunker struct {
	ledger  *ledger
	maxRows int // rows in a chunk
	emit    func([]row) error

	txn     *transaction // nil between transactions
	pending []row        // read, but not yet emitted
}

func (c *chunker) begin() { c.txn = c.ledger.begin() }

// add adds a row of the transaction.
func (c *chunker) add(ctx context.Context, r row) error {
	r.txn = c.txn
	c.pending = append(c.pending, r)
	if len(c.pending) == c.maxRows {
		return c.flush(ctx, 0)
	}
	return nil
}

// end ends the transaction at a position.
func (c *chunker) end(ctx context.Context, at uint64) error {
	err := c.flush(ctx, at)
	c.txn = nil
	return err
}

func (c *chunker) flush(ctx context.Context, end uint64) error {
	chunk := c.pending
	if err := c.ledger.addRows(ctx, c.txn, len(chunk), end); err != nil || len(chunk) == 0 {
		return err
	}
	c.pending = make([]row, 0, len(chunk)) // the next chunk is likely as large
	return c.emit(chunk)
}
