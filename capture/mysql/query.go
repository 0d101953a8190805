package mysql

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// query takes a statement in the log: what begins and ends transactions, and
// statements that change tables.
func (a *assembler) query(d *decoder, raw []byte, end uint32) error {
	e, err := d.events.Parse(raw)
	if err != nil {
		return err
	}
	q, ok := e.Event.(*replication.QueryEvent)
	if !ok {
		return fmt.Errorf("a QUERY event is a %T", e.Event)
	}
	switch first, second := firstWords(q.Query); first {
	case "BEGIN":
		a.sawBegin = true
		return nil
	case "COMMIT":
		return a.end(end)
	case "ROLLBACK":
		if second == "TO" {
			return nil // the claims find out which rows are gone
		}
		// So are the rows of a transaction that wrote to a table without
		// transactions too, and was rolled back.
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
		return a.end(end) // XA COMMIT or ROLLBACK: the rows came when it was prepared
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

// firstWords returns the first two words of a statement, in capitals.
func firstWords(query []byte) (first, second string) {
	const most = 40 // enough for two words of those that matter
	fields := bytes.Fields(query[:min(len(query), most)])
	if len(fields) > 0 {
		first = strings.ToUpper(string(bytes.TrimSuffix(fields[0], []byte(";"))))
	}
	if len(fields) > 1 {
		second = strings.ToUpper(string(fields[1]))
	}
	return first, second
}

// markStale notes the tables that a statement may have changed.
func (a *assembler) markStale(query []byte) error {
	a.writers = nil // it may have made or dropped one
	text := strings.ToLower(string(query))
	for _, t := range a.tables.byKey {
		if strings.Contains(text, strings.ToLower(t.name)) {
			t.stale, t.hasOtherUniqueKey = true, true
			if strings.Contains(text, "system versioning") {
				return lostErrorf("table %s.%s was made system-versioned, or no longer is: rows of before may be versions of others", t.schema, t.name)
			}
		}
	}
	return nil
}

// statement takes a statement inside a transaction. The rows that it wrote are not
// in the log: a session wrote with binlog_format=STATEMENT or MIXED.
func (a *assembler) statement(schema string, query []byte) error {
	if first, _ := firstWords(query); first == "CREATE" { // … SELECT, whose rows follow
		return a.markStale(query)
	}
	why, doubt, err := a.findUnloggedWrite(schema, query)
	switch {
	case err != nil || why == "":
		return err
	case doubt:
		a.missingRows = why
		return a.checkMissingRows()
	}
	return lostErrorf("%s", why)
}
