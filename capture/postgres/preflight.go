package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	"github.com/sluicebox/sluicebox/capture/internal/logsource"
	"github.com/sluicebox/sluicebox/store"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// minVersion is the first version with messages in pgoutput.
const minVersion = 140000

// server is the state of the server that the checks and the slot need.
type server struct {
	version     int // as in server_version_num
	user        string
	walLevel    string
	slots       int
	maxSlots    int
	hasSlot     bool // the relay's own slot exists
	recovery    bool
	tables      []*table
	publication publication
}

var errStandby = errors.New("server is a standby: with several hosts in the URL, target_session_attrs=read-write picks the primary")

const serverSQL = `
SELECT current_setting('server_version_num')::int, current_user::text, current_setting('wal_level'),
	(SELECT count(*) FROM pg_replication_slots)::int, current_setting('max_replication_slots')::int,
	EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1),
	pg_is_in_recovery()`

// catalog reads the server's catalogs over one session.
type catalog struct {
	cfg  *Config
	conn *pgx.Conn
}

func (s *Source) catalog(conn *pgx.Conn) *catalog { return &catalog{&s.cfg, conn} }

// inspect reads everything that the checks need.
func (c *catalog) inspect(ctx context.Context) (*server, fault.List, error) {
	var sv server
	var faults fault.List
	err := c.conn.QueryRow(ctx, serverSQL, c.cfg.Name).Scan(&sv.version, &sv.user, &sv.walLevel,
		&sv.slots, &sv.maxSlots, &sv.hasSlot, &sv.recovery)
	if err != nil {
		return nil, faults, fmt.Errorf("inspect server: %w", pgstore.Explain(err))
	}
	if sv.recovery {
		// It may be the primary again soon, so this is not a setup error.
		return nil, faults, errStandby
	}

	c.checkServer(&sv, &faults)
	if sv.tables, err = c.findTables(ctx, &faults); err != nil {
		return nil, faults, err
	}
	if err = c.checkGenerated(ctx, sv.tables, &faults); err != nil {
		return nil, faults, err
	}
	partitions, err := c.findPartitionFaults(ctx, sv.tables)
	if err != nil {
		return nil, faults, err
	}
	faults.Faults = append(faults.Faults, partitions...)
	if sv.publication, err = c.findPublication(ctx, &sv); err != nil {
		return nil, faults, err
	}

	sv.publication.check(c.cfg, &sv, &faults)
	return &sv, faults, nil
}

func (c *catalog) checkServer(sv *server, faults *fault.List) {
	if sv.version < minVersion {
		faults.Add(fault.Fault{Subject: "server", Problem: fmt.Sprintf("server is PostgreSQL %d, 14 or later is needed", sv.version/10000),
			Instructions: "upgrade it, or poll"})
	}
	if sv.walLevel != "logical" {
		faults.Add(fault.Fault{
			Subject: "wal_level", Problem: "wal_level is " + sv.walLevel + ", must be logical",
			Statements: []string{"ALTER SYSTEM SET wal_level = logical;"},
			Instructions: "as a superuser and restart the server " +
				"(managed services have a switch of their own: rds.logical_replication on Amazon RDS, cloudsql.logical_decoding on Cloud SQL)",
		})
	}
	if !sv.hasSlot && sv.slots >= sv.maxSlots {
		faults.Add(fault.Fault{
			Subject: "slots", Problem: fmt.Sprintf("all %d replication slots are taken", sv.maxSlots),
			Statements: []string{fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = %d;", sv.maxSlots+spareSlots)},
			Instructions: "as a superuser and restart the server, or drop an unused slot " +
				"(SELECT slot_name, active FROM pg_replication_slots; SELECT pg_drop_replication_slot('…');)",
		})
	}
}

// spareSlots is how many more slots a server without a free one should get.
const spareSlots = 5

// slotsRemedy is the remedy for a server without a free slot.
const slotsRemedy = "drop an unused one (SELECT slot_name, active FROM pg_replication_slots; SELECT pg_drop_replication_slot('…');), " +
	"or run `ALTER SYSTEM SET max_replication_slots = …;` with a larger number and restart the server"

// subjectNoTable is the subject of faults that the store finds too.
const subjectNoTable = "no table"

const tableSQL = `
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
	pg_has_role(current_user, c.relowner, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)`

// findTables looks up the outbox tables.
func (c *catalog) findTables(ctx context.Context, faults *fault.List) ([]*table, error) {
	var list []*table
	byOID := map[uint32]*table{}
	for i := range c.cfg.Outboxes {
		o := &c.cfg.Outboxes[i]
		if o.MessagePrefix != "" {
			continue // without a table
		}
		quoted := pgstore.TableName(o)
		var t table
		var kind, persistence string
		err := c.conn.QueryRow(ctx, tableSQL, quoted).Scan(&t.oid, &t.schema, &t.name, &kind, &persistence, &t.owned)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			faults.Add(fault.Fault{Subject: subjectNoTable, Problem: fmt.Sprintf("outbox %s: table %s does not exist, or the role may not use its schema", o.Name, quoted),
				Instructions: "create it, correct the name, or name its schema"})
			faults.Fatal = true
			continue
		case err != nil:
			return nil, fmt.Errorf("look up table %s: %w", quoted, pgstore.Explain(err))
		case kind != "r" && kind != "p":
			faults.Add(fault.Fault{Subject: subjectNoTable, Problem: fmt.Sprintf("outbox %s: %s is not a table", o.Name, quoted), Instructions: "name the table that the rows are inserted into"})
			faults.Fatal = true
			continue
		case persistence != "p":
			faults.Add(fault.Fault{Subject: "tables", Problem: fmt.Sprintf("outbox %s: table %s is unlogged or temporary: the WAL does not contain its rows", o.Name, quoted),
				Statements: []string{fmt.Sprintf("ALTER TABLE %s SET LOGGED;", quoted)}})
			continue
		}
		t.partitioned = kind == "p"
		known := byOID[t.oid]
		if known == nil {
			known = &t
			byOID[t.oid] = known
			list = append(list, known)
		}
		known.outboxes = append(known.outboxes, o)
	}

	return list, nil
}

// generatedSQL finds the columns that the WAL does not contain. Since version 18 a
// publication can include stored generated columns.
const generatedSQL = `
SELECT a.attname::text FROM pg_attribute a
WHERE a.attrelid = $1 AND a.attname = ANY ($2) AND NOT a.attisdropped AND a.attgenerated <> ''
	AND NOT (a.attgenerated = 's' AND EXISTS (
		SELECT FROM pg_publication p WHERE p.pubname = $3 AND to_jsonb(p) ->> 'pubgencols' = 's'))
ORDER BY a.attnum`

// checkGenerated reports generated columns in a layout before the first row fails.
func (c *catalog) checkGenerated(ctx context.Context, tables []*table, faults *fault.List) error {
	for _, t := range tables {
		for _, o := range t.outboxes {
			rows, err := c.conn.Query(ctx, generatedSQL, t.oid, logsource.CapturedColumns(&o.Layout), c.cfg.Name)
			if err != nil {
				return fmt.Errorf("find generated columns of %s: %w", t.quoted(), pgstore.Explain(err))
			}
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return fmt.Errorf("find generated columns of %s: %w", t.quoted(), pgstore.Explain(err))
			}
			for _, name := range names {
				faults.Add(fault.Fault{
					Subject: "tables",
					Problem: fmt.Sprintf("outbox %s: column %s (%s) of table %s is generated, and the WAL does not contain generated columns",
						o.Name, pgstore.Ident(name), o.Layout.ConfigKey(name), t.quoted()),
					Instructions: "name an ordinary column (group-path reads a group from the JSON of another one), or poll",
				})
			}
		}
	}
	return nil
}

// readsAny reports whether an outbox of the table reads one of the columns.
func (t *table) readsAny(columns []string) bool {
	return slices.ContainsFunc(t.outboxes, func(o *store.Outbox) bool {
		return slices.ContainsFunc(logsource.CapturedColumns(&o.Layout), func(name string) bool { return slices.Contains(columns, name) })
	})
}
