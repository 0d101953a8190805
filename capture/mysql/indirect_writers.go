package mysql

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/capture/internal/fault"
	mystore "github.com/sluicebox/sluicebox/store/mysql"
)

// missingRowsInterval is the minimum time between two snapshots because of statements
// that may have written rows. Without it, a session that runs many such statements about
// other tables would cause a snapshot for each.
const missingRowsInterval = time.Minute

// indirectWriters are the objects through which a statement may write outboxes without
// naming them.
type indirectWriters struct {
	// names are the outboxes, and the views, routines and tables with triggers that write
	// them. hidden are objects whose bodies the account may not see.
	names, hidden []object
	// visibleTriggers are the databases whose triggers the account may see; "*" means
	// all.
	visibleTriggers map[string]bool
}

// object is a table, view or routine of a database, both names in lower case.
type object struct{ schema, name string }

// isNamedIn reports whether a lower-case text may refer to the object. Its unqualified
// names belong to database schema, because databases may have objects of the same name.
func (o object) isNamedIn(text, schema string) bool {
	return containsWord(text, o.name) && (schema == o.schema || containsWord(text, o.schema))
}

// A trigger is listed by its table. Statements name views and routines directly.
const bodiesSQL = `SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, COALESCE(ACTION_STATEMENT, '') FROM information_schema.TRIGGERS
UNION ALL SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(VIEW_DEFINITION, '') FROM information_schema.VIEWS WHERE TABLE_SCHEMA NOT IN ('sys', 'mysql', 'information_schema', 'performance_schema')
UNION ALL SELECT ROUTINE_SCHEMA, ROUTINE_NAME, COALESCE(ROUTINE_DEFINITION, '') FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA NOT IN ('sys', 'mysql')`

// findWriters reads the indirect writers from the server.
func (c *control) findWriters(ctx context.Context, tables *tables) (*indirectWriters, error) {
	bodies := map[object][]string{}
	err := c.each(ctx, func(row *sql.Rows) error {
		var schema, name, body string
		err := row.Scan(&schema, &name, &body)
		o := object{strings.ToLower(schema), strings.ToLower(name)}
		bodies[o] = append(bodies[o], strings.ToLower(body))
		return err
	}, bodiesSQL)
	if err != nil {
		return nil, fmt.Errorf("list triggers, views and routines: %w", mystore.Explain(err))
	}
	w := &indirectWriters{names: expandWriters(bodies, tables.outboxObjects(), false)}
	w.hidden = expandWriters(bodies, nil, true)
	grants, err := c.queryStrings(ctx, "SHOW GRANTS")
	if err != nil {
		return nil, fmt.Errorf("read account grants: %w", mystore.Explain(err))
	}

	w.visibleTriggers = visibleTriggerSchemas(grants)
	return w, nil
}

// expandWriters adds to list the objects that write through an object of the list,
// directly or indirectly. With hidden set it also adds the objects whose bodies are
// hidden. It removes added objects from bodies.
func expandWriters(bodies map[object][]string, list []object, hidden bool) []object {
	for grown := true; grown; {
		grown = false
		for o, texts := range bodies {
			if slices.ContainsFunc(texts, func(body string) bool { return hidden && body == "" || firstNamed(body, o.schema, list) != "" }) {
				list, grown = append(list, o), true
				delete(bodies, o)
			}
		}
	}
	return list
}

// outboxObjects returns the outboxes' tables.
func (t *tables) outboxObjects() (list []object) {
	for _, tb := range t.byKey {
		list = append(list, object{strings.ToLower(tb.schema), strings.ToLower(tb.name)})
	}
	return list
}

// firstNamed returns the name of the first object that a text may refer to; "" if there
// is none. Unqualified names belong to database schema.
func firstNamed(text, schema string, list []object) string {
	for _, o := range list {
		if o.isNamedIn(text, schema) {
			return o.name
		}
	}
	return ""
}

// containsWord reports whether a text contains a name as a word.
func containsWord(text, name string) bool {
	inside := func(c byte) bool {
		return c == '_' || c == '$' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z'
	}

	for from := 0; ; {
		i := strings.Index(text[from:], name)
		if i < 0 {
			return false
		}
		i += from
		end := i + len(name)
		if (i == 0 || !inside(text[i-1])) && (end == len(text) || !inside(text[end])) {
			return true
		}
		from = i + 1
	}
}

// grantForm matches a grant on all databases or on one.
var grantForm = regexp.MustCompile("^GRANT (.*) ON (\\*|`[^`]*`)\\.\\* TO ")

// visibleTriggerSchemas returns the databases whose triggers an account with the grants
// may see.
func visibleTriggerSchemas(grants []string) map[string]bool {
	visible := map[string]bool{}
	for _, grant := range grants {
		m := grantForm.FindStringSubmatch(grant)
		if m == nil {
			continue
		}
		if rights := strings.Split(m[1], ", "); slices.Contains(rights, "TRIGGER") || slices.Contains(rights, "ALL PRIVILEGES") {
			visible[strings.ReplaceAll(strings.Trim(m[2], "`"), `\`, "")] = true
		}
	}
	return visible
}

// leadingComments matches blanks and comments at the start of a statement.
var leadingComments = regexp.MustCompile(`^(\s+|/\*(?s:.*?)\*/|(--\s|#)[^\n]*\n)+`)

// unloggedWrites detects statements that wrote rows of an outbox without logging them.
type unloggedWrites struct {
	// findWriters finds the objects through which statements may write outboxes; if it is
	// nil, only statements that name an outbox count. writers caches its result; nil
	// before the first call.
	findWriters func() (*indirectWriters, error)
	writers     *indirectWriters
	// missingRows is the reason why rows may be missing, if any. missingRowsFrom is the
	// earliest time to report it.
	missingRows     string
	missingRowsFrom time.Time
}

// statement returns a *capture.LostError if a statement inside a transaction wrote rows that
// are not in the binlog.
func (u *unloggedWrites) statement(tables *tables, schema string, query []byte) error {
	reason, uncertain, err := u.find(tables, schema, query)
	switch {
	case err != nil || reason == "":
		return err
	case uncertain:
		u.missingRows = reason
		return u.check()
	}
	return fault.Lostf("%s", reason)
}

// check returns a *capture.LostError if rows may be missing, once missingRowsFrom has
// passed.
func (u *unloggedWrites) check() error {
	if u.missingRows == "" || time.Now().Before(u.missingRowsFrom) {
		return nil
	}
	return fault.Lostf("%s", u.missingRows)
}

// find returns why a statement inside a transaction may have written rows of
// an outbox that are not in the binlog; "" if it has not. uncertain means that the account
// may not see enough to decide.
func (u *unloggedWrites) find(tables *tables, schema string, query []byte) (reason string, uncertain bool, err error) {
	query = leadingComments.ReplaceAll(query, nil)
	text, database := strings.ToLower(string(query)), strings.ToLower(schema)
	first, _ := firstWords(query)
	switch first {
	case "CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE", "ANALYZE", "OPTIMIZE", "REPAIR", "GRANT", "REVOKE", "FLUSH", "SET":
		return "", false, nil
	}

	summary := statementSummary(query)
	for _, t := range tables.byKey {
		inDatabase := database == strings.ToLower(t.schema) || strings.Contains(text, strings.ToLower(t.schema))
		if inDatabase && strings.Contains(text, strings.ToLower(t.name)) && first != "UPDATE" && first != "DELETE" {
			return fmt.Sprintf("a session wrote table %s.%s with a binlog_format other than ROW: its rows are not in the binlog (%s)", t.schema, t.name, summary), false, nil
		}
	}

	if u.findWriters == nil {
		return "", false, nil
	}
	if u.writers == nil {
		if u.writers, err = u.findWriters(); err != nil {
			return "", false, err
		}
	}

	w, outboxes := u.writers, tables.outboxObjects()
	others := slices.DeleteFunc(slices.Clone(w.names), func(o object) bool { return slices.Contains(outboxes, o) })

	// An object of another database writes an outbox only if it names the outbox's
	// database.
	namesDatabase := slices.ContainsFunc(outboxes, func(o object) bool { return database == o.schema || containsWord(text, o.schema) })
	if name := firstNamed(text, database, others); name != "" || namesDatabase && first == "SELECT" { // a SELECT is logged for a function that wrote
		return fmt.Sprintf("a session with a binlog_format other than ROW wrote through %q, which may write an outbox: its rows are not in the binlog; SET SESSION binlog_format = 'ROW' for it (%s)",
			cmp.Or(name, "a function"), summary), false, nil
	}

	if !namesDatabase || (w.visibleTriggers["*"] || w.visibleTriggers[schema]) && firstNamed(text, database, w.hidden) == "" {
		return "", false, nil
	}
	return fmt.Sprintf("a session wrote with a binlog_format other than ROW, and the account may not see whether a trigger or a view wrote an outbox; "+
		"SET SESSION binlog_format = 'ROW' for it, or GRANT TRIGGER ON the database to the relay's account (%s)", summary), true, nil
}

// statementSummary returns the beginning of a statement, without values.
func statementSummary(query []byte) string {
	const maxBytes = 80
	value := func(r rune) bool { return r < ' ' || strings.ContainsRune("('\"=0123456789", r) }
	if i := bytes.IndexFunc(query, value); i >= 0 {
		query = query[:i]
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(query[:min(len(query), maxBytes)]), "")), " ") + " …"
}
