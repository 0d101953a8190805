package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// longTransaction is the age from which a transaction is reported, because the server
// retains WAL from its start.
const longTransaction = 10 * time.Minute

// checkTransactions looks for an old transaction. It delays the creation of a slot, and
// an existing slot retains WAL from the transaction's start.
func (e *diagnosis) checkTransactions(ctx context.Context) error {
	age := longTransaction
	effect := "the server retains WAL since then"
	if !e.slotUsable() {
		age, effect = e.source.cfg.SlotTimeout, "the slot cannot be created before it ends; the relay polls meanwhile if it may"
	}

	old, err := e.source.oldest.find(ctx, e.conn)
	if err != nil {
		return err
	}
	if old == nil || old.Age < age {
		return e.checkHiddenTransactions(ctx, effect)
	}

	remedies := []string{old.Remedy}
	if old.PID != 0 {
		remedies = []string{terminateComment, terminateStatement(old.PID)}
	}

	e.Add("transactions", store.GradeAdvice, old.description+": "+effect, remedies...)
	return nil
}

const terminateComment = "-- as an administrator, to end it now"

func terminateStatement(pid int) string { return fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid) }

// hiddenTransaction is a transaction that has written and whose start the role may not
// see.
type hiddenTransaction struct {
	XID string
	PID int
}

// hiddenSQL finds hidden transactions. A session without a row in pg_stat_activity is
// about to end. Prepared transactions are never hidden.
const hiddenSQL = `
SELECT l.transactionid::text, l.pid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid() AND a.xact_start IS NULL
ORDER BY age(l.transactionid) DESC`

func (e *diagnosis) findHidden(ctx context.Context) ([]hiddenTransaction, error) {
	rows, err := e.conn.Query(ctx, hiddenSQL)
	if err != nil {
		return nil, fmt.Errorf("find old transactions: %w", pgstore.Explain(err))
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[hiddenTransaction])
	if err != nil {
		return nil, fmt.Errorf("find old transactions: %w", pgstore.Explain(err))
	}
	return list, nil
}

// Hidden transactions are watched for hiddenTimeout, at most SlotTimeout, and polled
// every hiddenPollInterval, because most of them end at once.
const (
	hiddenTimeout      = defaultSlotTimeout
	hiddenPollInterval = 100 * time.Millisecond
)

// checkHiddenTransactions watches transactions whose age the role may not see. A
// transaction that stays open meanwhile is reported as old, without its age.
func (e *diagnosis) checkHiddenTransactions(ctx context.Context, effect string) error {
	left, err := e.findHidden(ctx)
	if err != nil {
		return err
	}

	watch := min(hiddenTimeout, e.source.cfg.SlotTimeout)
	for until := time.Now().Add(watch); len(left) > 0 && time.Now().Before(until); {
		if err := backoff.Sleep(ctx, hiddenPollInterval); err != nil {
			return err
		}
		now, err := e.findHidden(ctx)
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(t hiddenTransaction) bool { return !slices.Contains(now, t) })
	}

	if len(left) == 0 {
		e.Add("transactions", store.GradeOK, "no long-running transaction")
		return nil
	}

	user := pgstore.Ident(e.server.user)
	e.Add("transactions", store.GradeAdvice,
		fmt.Sprintf("pid %d has a transaction open for longer than %s, and %s may not see its start (pg_read_all_stats); if it is old, %s",
			left[0].PID, watch, user, effect),
		"-- as an administrator, so that the role sees it", "GRANT pg_read_all_stats TO "+user+";")
	return nil
}
