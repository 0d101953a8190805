package mysql

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
)

// query processes a statement in the binlog: the start or end of a transaction, or a
// statement that may change tables.
func (a *assembler) query(d *decoder, raw []byte, end uint32) error {
	e, err := d.events.Parse(raw)
	if err != nil {
		return err
	}

	q, ok := e.Event.(*replication.QueryEvent)
	if !ok {
		return fmt.Errorf("QUERY event decoded as %T", e.Event)
	}

	switch first, second := firstWords(q.Query); first {
	case "BEGIN":
		a.sawBegin = true
		return nil
	case "COMMIT":
		return a.end(end)
	case "ROLLBACK":
		if second == "TO" {
			return nil // claims find out which rows are gone
		}
		// The same holds for a rolled-back transaction that also wrote to a table without
		// transactions.
		return a.end(end)
	case "SAVEPOINT", "RELEASE":
		return nil
	case "XA":
		switch second {
		case "START", "BEGIN":
			a.sawBegin = true
			return nil
		case "END":
			return nil
		}
		return a.end(end) // XA COMMIT or ROLLBACK: its rows came at the PREPARE
	}

	a.foreign = true
	if a.sawBegin {
		return a.statement(string(q.Schema), q.Query)
	}

	if err := a.markStale(q.Query); err != nil {
		return err
	}
	return a.end(end)
}

// firstWords returns the first two words of a statement in upper case.
func firstWords(query []byte) (first, second string) {
	const maxBytes = 40 // enough for two words of every relevant statement
	fields := bytes.Fields(query[:min(len(query), maxBytes)])
	if len(fields) > 0 {
		first = strings.ToUpper(string(bytes.TrimSuffix(fields[0], []byte(";"))))
	}
	if len(fields) > 1 {
		second = strings.ToUpper(string(fields[1]))
	}
	return first, second
}

// markStale marks the tables that a statement may have changed.
func (a *assembler) markStale(query []byte) error {
	a.writers = nil // it may have created or dropped one
	text := strings.ToLower(string(query))
	for _, t := range a.tables.byKey {
		if strings.Contains(text, strings.ToLower(t.name)) {
			t.stale, t.hasOtherUniqueKey = true, true
			if strings.Contains(text, "system versioning") {
				return fault.Lostf("table %s.%s was made system-versioned, or no longer is: earlier rows may be old versions of other rows", t.schema, t.name)
			}
		}
	}
	return nil
}

// statement processes a statement inside a transaction. Its rows are not in the binlog,
// because the session used binlog_format=STATEMENT or MIXED.
func (a *assembler) statement(schema string, query []byte) error {
	if first, _ := firstWords(query); first == "CREATE" { // CREATE … SELECT: its rows follow
		return a.markStale(query)
	}
	reason, uncertain, err := a.findUnloggedWrite(schema, query)
	switch {
	case err != nil || reason == "":
		return err
	case uncertain:
		a.missingRows = reason
		return a.checkMissingRows()
	}
	return fault.Lostf("%s", reason)
}
