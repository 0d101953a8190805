package ledger_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

// countedViews counts the views of a backend. While it loses commits, an update happens, but its
// caller gets an error.
type countedViews struct {
	ledger.Backend
	views int
	loses bool
}

func (c *countedViews) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	c.views++
	return c.Backend.View(ctx, do)
}

func (c *countedViews) Update(ctx context.Context, epoch store.Epoch, d ledger.Durability, do func(context.Context, ledger.Tx) error) error {
	err := c.Backend.Update(ctx, epoch, d, do)
	if err == nil && c.loses {
		err = errors.New("connection lost during COMMIT")
	}
	return err
}

// A leader reads the records of legs of those rows that may have one, whoever wrote it, and no other.
func TestLegRowsReadsWhatMayExist(t *testing.T) {
	db := memory.New().Backend("relay")
	boxes := []store.Outbox{{Name: "orders", Routes: []store.Route{{Name: "bus"}, {Name: "hooks"}}}}
	lead := func() (*ledger.Ledger, *countedViews, store.Epoch) {
		records := &countedViews{Backend: db}
		s := ledger.Store{Tables: settledTables{backend: db}, Ledger: ledger.New(ledger.Config{Outboxes: boxes, Records: records, Spill: records, Replay: records, BatchRows: 10})}
		epoch, err := s.AcquireLeadership(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		records.views = 0
		return s.Ledger, records, epoch
	}
	rows := []store.Ref{{Outbox: "orders", ID: "1"}, {Outbox: "orders", ID: "2"}, {Outbox: "orders", ID: "3"}}
	expect := func(l *ledger.Ledger, records *countedViews, want string, views int) {
		t.Helper()
		got, err := l.LegRows(t.Context(), rows)
		if err != nil || len(got) != len(rows) {
			t.Fatal(got, err)
		}
		var ids []string
		for i, r := range got {
			if r != nil {
				ids = append(ids, rows[i].ID)
			}
		}
		if strings.Join(ids, " ") != want || records.views != views {
			t.Errorf("records of rows %q in %d views; want %q in %d", ids, records.views, want, views)
		}
		records.views = 0
	}
	spill := func(l *ledger.Ledger, epoch store.Epoch, n int) error {
		id := rows[n-1].ID
		row := store.LegRow{Ref: rows[n-1], Matched: []string{"bus", "hooks"}, Spilled: []string{"hooks"}}
		return l.SpillLegs(t.Context(), epoch, []store.Item{legItem("orders/hooks", id, n)}, []store.LegRow{row})
	}

	first, read, epoch := lead()
	expect(first, read, "", 0)
	if err := spill(first, epoch, 1); err != nil {
		t.Fatal(err)
	}
	expect(first, read, "1", 1)
	read.loses = true
	if err := spill(first, epoch, 2); err == nil {
		t.Fatal("no error of the lost commit")
	}
	expect(first, read, "1 2", 1) // it was written nevertheless

	second, read, epoch := lead()
	expect(second, read, "1 2", 1)
	rows = slices.Clone(rows[2:])
	expect(second, read, "", 0)
	rows = []store.Ref{{Outbox: "orders", ID: "1"}, {Outbox: "orders", ID: "2"}, {Outbox: "orders", ID: "3"}}
	end := func(id string) store.LegEnd {
		ref := store.Ref{Outbox: "orders/bus", ID: id}
		return store.LegEnd{Outcome: store.Outcome{Ref: ref, Status: store.Completed}, Of: store.Ref{Outbox: "orders", ID: id}}
	}
	ends := []store.LegEnd{end("1"), end("2"), end("3")}
	ends[2].Record = &store.LegRow{Ref: rows[2], Matched: []string{"bus", "hooks"}, Done: []string{"bus"}}
	if err := second.SettleLegs(t.Context(), epoch, ends); err != nil {
		t.Fatal(err)
	}
	expect(second, read, "3", 1)

	other := ledger.New(ledger.Config{Outboxes: boxes, Records: db, Spill: db, Replay: db, BatchRows: 10}) // no leader
	expect(other, &countedViews{}, "3", 0)
	if err := spill(first, epoch-1, 1); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("an earlier leader writes a record: %v", err)
	}
}
