package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// publication is the current state of the relay's publication.
type publication struct {
	needed        bool // also without a table: a stream names a publication
	exists        bool
	owned         bool
	insertOnly    bool
	viaRoot       bool
	missing       []*table // outbox tables that are not published
	filtered      []*table // outbox tables with a row filter
	columnLimited []*table // outbox tables published without a needed column
}

const publicationSQL = `
SELECT pubinsert AND NOT pubupdate AND NOT pubdelete AND NOT pubtruncate, pubviaroot,
	pg_has_role(current_user, pubowner, 'USAGE')
FROM pg_publication WHERE pubname = $1`

// Unlike the catalogs, the view includes publications of all tables and of whole schemas.
const publishedSQL = `
SELECT c.oid FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename WHERE t.pubname = $1`

// Row filters exist since version 15.
const filteredSQL = `
SELECT r.prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = $1 AND to_jsonb(r) ->> 'prqual' IS NOT NULL`

// Column lists exist since version 15.
const omittedColumnsSQL = `
SELECT a.attrelid, a.attname::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attnum > 0 AND NOT a.attisdropped
WHERE p.pubname = $1 AND jsonb_typeof(to_jsonb(r) -> 'prattrs') = 'array' AND NOT to_jsonb(r) -> 'prattrs' @> to_jsonb(a.attnum)`

func (c *catalog) findPublication(ctx context.Context, sv *server) (publication, error) {
	p := publication{needed: len(sv.tables) > 0 || len(c.cfg.messagePrefixes()) > 0}
	fail := func(err error) (publication, error) {
		return p, fmt.Errorf("read publication %s: %w", c.cfg.Name, pgstore.Explain(err))
	}

	err := c.conn.QueryRow(ctx, publicationSQL, c.cfg.Name).Scan(&p.insertOnly, &p.viaRoot, &p.owned)
	if errors.Is(err, pgx.ErrNoRows) {
		p.missing = sv.tables
		return p, nil
	}
	if err != nil {
		return fail(err)
	}

	p.exists = true
	published, err := queryOIDs(ctx, c.conn, publishedSQL, c.cfg.Name)
	if err != nil {
		return fail(err)
	}

	filtered, err := queryOIDs(ctx, c.conn, filteredSQL, c.cfg.Name)
	if err != nil {
		return fail(err)
	}

	omitted, err := c.omittedColumns(ctx)
	if err != nil {
		return fail(err)
	}

	for _, t := range sv.tables {
		if t.readsAny(omitted[t.oid]) {
			p.columnLimited = append(p.columnLimited, t)
		}
		if !published[t.oid] {
			p.missing = append(p.missing, t)
		}
		if filtered[t.oid] {
			p.filtered = append(p.filtered, t)
		}
	}

	return p, nil
}

// omittedColumns returns the columns that the publication omits, by table.
func (c *catalog) omittedColumns(ctx context.Context) (map[uint32][]string, error) {
	rows, err := c.conn.Query(ctx, omittedColumnsSQL, c.cfg.Name)
	if err != nil {
		return nil, err
	}
	columns := map[uint32][]string{}
	var oid uint32
	var name string
	_, err = pgx.ForEachRow(rows, []any{&oid, &name}, func() error {
		columns[oid] = append(columns[oid], name)
		return nil
	})
	return columns, err
}

func queryOIDs(ctx context.Context, conn *pgx.Conn, sql, name string) (map[uint32]bool, error) {
	rows, err := conn.Query(ctx, sql, name)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	set := make(map[uint32]bool, len(list))
	for _, oid := range list {
		set[oid] = true
	}
	return set, err
}

// check adds the faults that the relay may not fix itself.
func (p *publication) check(cfg *Config, sv *server, faults *fault.List) {
	name := pgstore.Ident(cfg.Name)
	partitioned := slices.ContainsFunc(sv.tables, func(t *table) bool { return t.partitioned })

	if p.exists && (!p.insertOnly || partitioned && !p.viaRoot) {
		faults.Add(fault.Fault{
			Subject: "publication", Problem: fmt.Sprintf("publication %s must publish inserts only, and partitions via their root", cfg.Name),
			Statements: []string{fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert', publish_via_partition_root = true);", name)},
		})
	}

	for _, of := range []struct {
		problem string
		tables  []*table
	}{{"filters the rows", p.filtered}, {"omits layout columns", p.columnLimited}} {
		for _, t := range of.tables {
			faults.Add(fault.Fault{
				Subject: "publication", Problem: fmt.Sprintf("publication %s %s of table %s", cfg.Name, of.problem, t.quoted()),
				Statements: []string{
					fmt.Sprintf("ALTER PUBLICATION %s DROP TABLE %s;", name, t.quoted()),
					fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s;", name, t.quoted()),
				},
			})
		}
	}

	if p.incomplete() && !p.canFix(cfg) {
		faults.Add(p.missingTablesFault(cfg.Name, "as the owner"))
	}
}

// incomplete reports whether the publication, or a table in it, is missing.
func (p *publication) incomplete() bool { return len(p.missing) > 0 || p.needed && !p.exists }

// missingTablesFault is the fault of a publication without a table.
func (p *publication) missingTablesFault(name, instructions string) fault.Fault {
	return fault.Fault{Subject: "publication", Problem: p.describeMissing(name), Statements: []string{p.fixStatement(name)}, Instructions: instructions}
}

// canFix reports whether the relay may create or complete the publication itself.
func (p *publication) canFix(cfg *Config) bool {
	foreign := func(t *table) bool { return !t.owned }
	return cfg.MayCreate && (!p.exists || p.owned) && !slices.ContainsFunc(p.missing, foreign)
}

// fixStatement returns the statement that creates or completes the publication; "" if
// nothing is missing.
func (p *publication) fixStatement(name string) string {
	if !p.incomplete() {
		return ""
	}
	if p.exists {
		return fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s;", pgstore.Ident(name), tableList(p.missing))
	}
	return createPublication(name, tableList(p.missing))
}

func createPublication(name, tables string) string {
	if tables != "" {
		tables = " FOR TABLE " + tables
	}
	return fmt.Sprintf("CREATE PUBLICATION %s%s WITH (publish = 'insert', publish_via_partition_root = true);", pgstore.Ident(name), tables)
}

func (p *publication) describeMissing(name string) string {
	if p.exists {
		return fmt.Sprintf("publication %s lacks %s", name, tableList(p.missing))
	}
	return fmt.Sprintf("publication %s does not exist", name)
}

func tableList(list []*table) string {
	var names []string
	for _, t := range list {
		names = append(names, t.quoted())
	}
	return strings.Join(names, ", ")
}

// fix creates or completes the publication.
func (p *publication) fix(ctx context.Context, conn *pgx.Conn, name string) error {
	statement := p.fixStatement(name)
	if statement == "" {
		return nil
	}

	_, err := conn.Exec(ctx, statement)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && pg.Code == "42501":
		f := p.missingTablesFault(name, "as an administrator")
		f.Problem += "; the role lacks the privilege to fix it: " + pg.Message
		return f.Err()
	case errors.As(err, &pg) && pg.Code == "42710":
		return fmt.Errorf("publication %s was changed concurrently: %w", name, err)
	}

	return fmt.Errorf("alter publication %s: %w", name, err)
}

// Publish creates or completes the publication without checking anything else that a
// stream needs. If the role lacks the privilege, the error is a *store.SetupError with
// the statement to run.
func (s *Source) Publish(ctx context.Context) error {
	return s.control.do(ctx, func(conn *pgx.Conn) error {
		var sv server
		var faults fault.List
		var err error
		if sv.tables, err = s.catalog(conn).findTables(ctx, &faults); err != nil {
			return err
		}
		if sv.publication, err = s.catalog(conn).findPublication(ctx, &sv); err != nil {
			return err
		}
		sv.publication.check(&s.cfg, &sv, &faults)
		if err := faults.Err(); err != nil {
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
		o := &s.cfg.Outboxes[i]
		if name := pgstore.TableName(o); o.MessagePrefix == "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return createPublication(s.cfg.Name, strings.Join(names, ", ")) + "\n"
}
