// Package audit reads what package verify compares: the rows of outboxes with the relay's records of
// them, and the receipts of receivers, from files or from topics of Kafka.
//
// A round reads why rows wait, then the tables, then the receipts. A receiver writes a receipt
// before it answers, so each row that was COMPLETED in the table has its receipt when the receipts are
// read. Nothing is written, and no leader is needed.
package audit

import (
	"context"

	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
)

// Tables is the part of a store that an audit reads.
type Tables interface {
	store.Viewer
	store.FailedReader
	LoadHolds(ctx context.Context) ([]store.Hold, error)
	LoadAttempts(ctx context.Context) ([]store.FailedAttempts, error)
	RowRecords
}

// RowRecords reads rows of an outbox with routes: their attributes, and what the routes did with them.
type RowRecords interface {
	store.RowStatusReader
	LegRows(ctx context.Context, rows []store.Ref) ([]*store.LegRow, error)
}

// Outbox is an outbox whose rows a receiver gets, on one route or all of them.
type Outbox struct {
	store.Outbox
	// Route and Router are for an outbox with routes; Route is one of Outbox.Routes.
	Route  string
	Router *route.Router
	// Unordered: rows without a group have no order.
	Unordered bool
}

// leg returns the name under which the relay's records have the rows.
func (o *Outbox) leg() string { return store.LegName(o.Name, o.Route) }
