package postgres

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store"
)

// query is a statement with the names of its parameters, in the order of their numbers.
type query struct {
	sql    string
	params []string
	bound  map[string]any // values that were bound with the statement
}

// with returns the statement with all its values bound. It takes over the map.
func (q *query) with(values map[string]any) *query {
	maps.Copy(values, q.bound)
	return &query{q.sql, q.params, values}
}

// args returns the values in the order of the parameters.
func (q *query) args(values map[string]any) []any {
	out := make([]any, len(q.params))
	for i, name := range q.params {
		v, ok := q.bound[name]
		if !ok {
			v, ok = values[name]
		}
		if !ok {
			panic("postgres: no value for parameter " + name)
		}
		out[i] = v
	}
	return out
}

// builder numbers the parameters of a statement as they are named.
type builder struct {
	params []string
	bound  map[string]any
}

// arg returns the placeholder of a parameter, with the type it is bound in.
func (b *builder) arg(name, typ string) string {
	i := slices.Index(b.params, name)
	if i < 0 {
		i = len(b.params)
		b.params = append(b.params, name)
	}
	return fmt.Sprintf("$%d::%s", i+1, typ)
}

// bind is arg for a parameter with the same value in each call.
func (b *builder) bind(name, typ string, value any) string {
	if b.bound == nil {
		b.bound = map[string]any{}
	}
	b.bound[name] = value
	return b.arg(name, typ)
}

func (b *builder) query(lines ...string) *query {
	return &query{strings.Join(lines, "\n"), b.params, b.bound}
}

// leader returns the CTE that fences every write. It locks the leader row until the
// transaction ends, and is empty unless the row has the writer's epoch and holder.
//
// No write of an old epoch lands after a new one was raised: AcquireLeadership terminates
// sessions that keep the lock, and a write that waited for AcquireLeadership rereads the
// row. The holder tells apart two relays that got the same epoch from two servers, for
// example because one server failed before its last epoch had replicated to the other.
func (b *builder) leader() string { return "leader AS MATERIALIZED (\n" + b.leaderRow() + "\n)" }

// leaderRow returns the query of leader.
func (b *builder) leaderRow() string {
	return `  SELECT epoch FROM sluicebox.leader
  WHERE name = ` + b.arg("name", "text") + ` AND epoch = ` + b.arg("epoch", "bigint") + ` AND holder = ` + b.arg("holder", "text") + `
  FOR SHARE`
}

// fenced returns the parameters of leader.
func (s *Store) fenced(epoch store.Epoch) map[string]any {
	return map[string]any{"name": s.name, "epoch": int64(epoch), "holder": s.holder}
}

// arrayLiteral returns the text form of an array of any element type.
func arrayLiteral(elements []string) string {
	size := 2
	for _, e := range elements {
		size += len(e) + 3
	}

	var sb strings.Builder
	sb.Grow(size)
	sb.WriteByte('{')
	for i, e := range elements {
		if i > 0 {
			sb.WriteByte(',')
		}
		sb.WriteByte('"')
		if strings.ContainsAny(e, `"\`) {
			e = strings.ReplaceAll(strings.ReplaceAll(e, `\`, `\\`), `"`, `\"`)
		}
		sb.WriteString(e)
		sb.WriteByte('"')
	}

	sb.WriteByte('}')
	return sb.String()
}

// nullableArrayLiteral is arrayLiteral with NULL for nil.
func nullableArrayLiteral(elements []any) string {
	parts := make([]string, len(elements))
	for i, e := range elements {
		parts[i] = "NULL"
		if e != nil {
			one := arrayLiteral([]string{fmt.Sprint(e)})
			parts[i] = one[1 : len(one)-1]
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// releaseMessage drops the protocol message of a scanned row. Its session would keep the
// message until the next row, and it may be as large as a payload.
func releaseMessage(rows pgx.Rows) { clear(rows.RawValues()) }
