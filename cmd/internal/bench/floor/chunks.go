package floor

import "context"

// arenaBytes is what rows share as memory, so that not each has its own.
const arenaBytes = 64 << 10

// arena holds copies of values, which lie in a read buffer.
type arena []byte

func (a *arena) keep(value []byte) []byte {
	if cap(*a)-len(*a) < len(value) {
		*a = make([]byte, 0, max(arenaBytes, len(value)))
	}
	from := len(*a)
	*a = append(*a, value...)
	return (*a)[from:len(*a):len(*a)]
}

// chunks gathers the rows of a transaction and hands them on.
type chunks struct {
	ledger *ledger
	most   int // rows in a chunk
	take   func([]row) error

	txn  *transaction // nil between transactions
	held []row        // read and not yet handed on
}

func (c *chunks) begin() { c.txn = c.ledger.begin() }

// add takes a row of the transaction.
func (c *chunks) add(ctx context.Context, r row) error {
	r.txn = c.txn
	c.held = append(c.held, r)
	if len(c.held) == c.most {
		return c.hand(ctx, 0)
	}
	return nil
}

// end takes the place behind the transaction.
func (c *chunks) end(ctx context.Context, at uint64) error {
	err := c.hand(ctx, at)
	c.txn = nil
	return err
}

func (c *chunks) hand(ctx context.Context, end uint64) error {
	chunk := c.held
	if err := c.ledger.read(ctx, c.txn, len(chunk), end); err != nil || len(chunk) == 0 {
		return err
	}
	c.held = make([]row, 0, len(chunk)) // the next one is likely as large
	return c.take(chunk)
}
