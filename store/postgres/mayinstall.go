package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// MayInstall reports whether the relay's tables are missing or outdated and Install would
// fix that: the role may create them, or owns the existing ones. It changes nothing.
func (s *Store) MayInstall(ctx context.Context) (may bool, err error) {
	const allowed = `
SELECT coalesce(
  (SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_schema_privilege(n.oid, 'CREATE') AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE'))
    FROM pg_catalog.pg_namespace n WHERE n.nspname = 'sluicebox'),
  pg_catalog.has_database_privilege(current_database(), 'CREATE'))`
	const there = `
SELECT count(*) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'sluicebox' AND c.relname = ANY ($1::text[])`
	var names []string
	for _, t := range ownTables() {
		names = append(names, t.name)
	}
	err = s.control.do(ctx, func(ctx context.Context, sess *session) error {
		if err := sess.conn.QueryRow(ctx, allowed).Scan(&may); err != nil || !may {
			return err
		}
		have, err := installed(ctx, sess.conn)
		var newer *store.SetupError
		if errors.As(err, &newer) {
			may = false
			return nil
		}
		var tables int
		if err == nil {
			err = sess.conn.QueryRow(ctx, there, names).Scan(&tables)
		}
		may = have > 0 && have < version || have == 0 && tables == 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("check whether the relay tables may be created: %w", Explain(err))
	}
	return may, nil
}
