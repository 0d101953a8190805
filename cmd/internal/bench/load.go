package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// rowsOfALoad is how many rows of a load one transaction has.
const rowsOfALoad = 1000

// The rows of a benchmark are numbered from 1 in each database. Their ids are
// their numbers, with which payloads begin, so that the receiver can tell them.
const (
	idDigits    = 13
	payloadHead = `{"id":"`
)

func rowID(n int) string { return fmt.Sprintf("%0*d", idDigits, n) }

// padding is what follows the id in a payload of a size.
func padding(size int) string {
	const around = `","pad":""}`
	return `","pad":"` + strings.Repeat("x", max(0, size-len(payloadHead)-idDigits-len(around))) + `"}`
}

// group is an expression for the group of row n; $2 is how many groups there are.
func (b *bench) group() string {
	if b.opts.Ungrouped {
		return "CASE WHEN $2::int = 0 THEN '' END"
	}
	return "'g' || n % $2::int"
}

// insert is the statement that writes the rows of a query of numbers n.
func (p *place) insert(group, from string) string {
	status := "'PENDING'"
	if p.layout == layoutNumbers {
		status = "0"
	}
	return fmt.Sprintf(`INSERT INTO %s (id, type, message_group, payload, status, created_at)
SELECT lpad(n::text, %d, '0'), 'EVENT', %s, '%s' || lpad(n::text, %d, '0') || $1, %s, now() FROM %s`,
		p.table, idDigits, group, payloadHead, idDigits, status, from)
}

// load commits rows, a thousand to a transaction.
func (b *bench) load(ctx context.Context, p *place, rows int, group string) error {
	statement := p.insert(group, "generate_series($3::bigint, $4::bigint) n")
	for left := rows; left > 0; left -= rowsOfALoad {
		n := min(left, rowsOfALoad)
		if _, err := p.conn.Exec(ctx, statement, padding(b.opts.Size), b.opts.Groups, p.rows+1, p.rows+n); err != nil {
			return fmt.Errorf("load rows: %w", err)
		}
		p.rows += n
	}
	return nil
}

// write commits rows at the rate of the options, each in a transaction of its own,
// for a time. A row that falls due while the database is slow is written as soon as
// it can be. A group's rows are all of one session, so that their order is known.
func (b *bench) write(ctx context.Context, p *place, to *tally) error {
	conns := make([]*pgx.Conn, 0, b.opts.Clients)
	defer func() {
		for _, conn := range conns {
			hangUp(conn)
		}
	}()
	statement := p.insert(b.group(), "(VALUES ($3::bigint)) v (n)")
	for range b.opts.Clients {
		conn, err := dial(ctx, p.url)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		if _, err := conn.Prepare(ctx, "write", statement); err != nil {
			return fmt.Errorf("the writer: %w", err)
		}
	}
	begin, first := time.Now(), p.rows+1
	work, ctx := errgroup.WithContext(ctx)
	for i, conn := range conns {
		work.Go(func() error {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for k := i; k < to.count; k += len(conns) {
				timer.Reset(time.Until(begin.Add(time.Duration(k) * time.Second / time.Duration(b.opts.Rate))))
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-timer.C:
				}
				if _, err := conn.Exec(ctx, "write", padding(b.opts.Size), b.opts.Groups, first+k); err != nil {
					return fmt.Errorf("the writer: %w", err)
				}
				to.committed(first+k, time.Now())
			}
			return nil
		})
	}
	p.rows += to.count
	return work.Wait()
}
