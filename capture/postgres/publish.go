package postgres

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// Publish creates or completes the publication without checking anything else that a
// stream needs. If the role lacks the privilege, the error is a *store.SetupError with
// the statement to run.
func (s *Source) Publish(ctx context.Context) error {
	return s.control.do(ctx, func(conn *pgx.Conn) error {
		var sv server
		var wrong fault.List
		var err error
		if sv.tables, err = s.findTables(ctx, conn, &wrong); err != nil {
			return err
		}
		if sv.publication, err = s.findPublication(ctx, conn, &sv); err != nil {
			return err
		}
		sv.publication.check(s, &sv, &wrong)
		if err := wrong.Err(); err != nil {
			return err
		}
		return sv.publication.fix(ctx, conn, s.cfg.Name)
	})
}

// Script returns the statement that creates the publication on a database without one.
// Open creates the slot, because the slot must come after the publication.
func (s *Source) Script() string {
	var names []string
	for i := range s.cfg.Outboxes {
		if name := pgstore.TableName(&s.cfg.Outboxes[i]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return createPublication(s.cfg.Name, strings.Join(names, ", ")) + "\n"
}
