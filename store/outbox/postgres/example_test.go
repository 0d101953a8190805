package postgres_test

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
	"github.com/sluicebox/sluicebox/store/outbox"
	"github.com/sluicebox/sluicebox/store/outbox/postgres"
)

// The row is committed with the business change, or not at all.
func ExampleWrite() {
	preset, _ := layouts.Named("postbox")
	box, err := outbox.New(store.Outbox{Table: "postbox_messages", Layout: *preset.Tables})
	if err != nil {
		panic(err)
	}
	pay := func(ctx context.Context, conn *pgx.Conn, order int64) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", order); err != nil {
				return err
			}
			_, err := postgres.Write(ctx, tx, box, outbox.Row{
				Kind:       "EVENT",
				Group:      []string{"1001", fmt.Sprint("order-", order)},
				Payload:    fmt.Appendf(nil, `{"order": %d}`, order),
				Attributes: store.Attributes{{Name: "event_type", Value: "order.paid"}},
			})
			return err
		})
	}
	conn, err := pgx.Connect(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	if err := pay(context.Background(), conn, 7); err != nil {
		panic(err)
	}
}
