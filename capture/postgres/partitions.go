package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	pgstore "github.com/sluicebox/sluicebox/store/postgres"
)

// partitionsSQL finds tables whose WAL is misleading:
//
//   - Tables with inheriting tables. The WAL shows the rows of those under their own
//     names.
//   - Partition keys at any level that use one of the given columns. A key depends on its
//     columns, also on those in an expression.
const partitionsSQL = `
SELECT u.n, '', i.inhrelid::regclass::text
FROM unnest($1::int[], $2::oid[]) u (n, oid) JOIN pg_class c ON c.oid = u.oid AND c.relkind = 'r'
JOIN pg_inherits i ON i.inhparent = c.oid
UNION ALL
SELECT w.n, pg_get_partkeydef(k.relid), w.name
FROM unnest($3::int[], $4::oid[], $5::text[]) w (n, oid, name) CROSS JOIN LATERAL pg_partition_tree(w.oid) k
JOIN pg_partitioned_table p ON p.partrelid = k.relid JOIN pg_attribute a ON a.attrelid = k.relid AND a.attname = w.name
WHERE a.attnum = ANY (p.partattrs::int2[]) OR EXISTS (SELECT FROM pg_depend d
	WHERE d.classid = 'pg_class'::regclass AND d.objid = k.relid AND d.objsubid = a.attnum
		AND d.refclassid = d.classid AND d.refobjid = k.relid AND d.refobjsubid = 0 AND d.deptype = 'i')
ORDER BY 1, 2, 3`

// findPartitionFaults finds tables with child tables, and tables partitioned by a column
// that the relay writes. Both can be polled.
func (c *catalog) findPartitionFaults(ctx context.Context, tables []*table) ([]fault.Fault, error) {
	var at, of []int
	var oids, ofOIDs []uint32
	var written []string
	for i, t := range tables {
		at, oids = append(at, i), append(oids, t.oid)
		for _, o := range t.outboxes {
			for _, name := range o.Layout.WrittenColumns() {
				of, ofOIDs, written = append(of, i), append(ofOIDs, t.oid), append(written, name)
			}
		}
	}

	rows, err := c.conn.Query(ctx, partitionsSQL, at, oids, of, ofOIDs, written)
	if err != nil {
		return nil, fmt.Errorf("find partitions and child tables: %w", pgstore.Explain(err))
	}

	children := map[int][]string{}
	var faults []fault.Fault
	var n int
	var key, name string
	_, err = pgx.ForEachRow(rows, []any{&n, &key, &name}, func() error {
		if key == "" {
			children[n] = append(children[n], name)
			return nil
		}
		faults = append(faults, tables[n].partitionKeyFault(key, name))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find partitions and child tables: %w", pgstore.Explain(err))
	}

	for i, t := range tables {
		if len(children[i]) > 0 {
			faults = append(faults, t.inheritanceFault(children[i]))
		}
	}

	return faults, nil
}

// partitionKeyFault is the fault of a partition key with a column that the relay writes.
// Such a write moves the row to another partition, and the WAL shows a moved row as an
// insert.
func (t *table) partitionKeyFault(key, column string) fault.Fault {
	o := t.outboxes[0]
	return fault.Fault{
		Subject: "tables",
		Problem: fmt.Sprintf("outbox %s: table %s is partitioned by %s, and the relay writes column %s (%s): the row moves to another partition, and the WAL shows it as a new row",
			o.Name, t.quoted(), key, pgstore.Ident(column), o.Layout.ConfigKey(column)),
		Instructions: "partition it by a column that never changes, such as " + strings.Join(slices.Concat(o.Layout.OrderBy, []string{o.Layout.Columns.ID}), " or ") + ", or poll",
	}
}

// inheritanceFault is the fault of a table that others inherit from.
func (t *table) inheritanceFault(names []string) fault.Fault {
	const shown = 3
	list := strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fault.Fault{
		Subject: "tables",
		Problem: fmt.Sprintf("outbox %s: tables inherit from %s (%s), and the WAL shows their rows as rows of other tables", t.outboxes[0].Name, t.quoted(), list),
		Instructions: "make it a partitioned table (PARTITION BY), or move the rows of its child tables into it and drop those, or poll; " +
			"the chunks of a TimescaleDB hypertable are such tables: use an ordinary table for the outbox",
	}
}
