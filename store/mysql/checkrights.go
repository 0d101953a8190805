package mysql

import (
	"context"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
)

// canRun reports whether the account may run a statement. The server checks the rights,
// including those granted by roles, before it plans the statement.
func (c *checker) canRun(ctx context.Context, text string) (bool, error) {
	rows, err := c.conn.sqlConn.QueryContext(ctx, "EXPLAIN "+text)
	if err == nil {
		err = rows.Close() // MariaDB reports the error here
	}
	switch code(err) {
	case codeTableDenied, codeColumnDenied:
		return false, nil
	case codeReadOnlyServer, codeReadOnly, codeReadOnlyMode, codeStatementFormat: // checked elsewhere
		return true, nil
	}
	return err == nil, err
}

// rights checks the account's rights on the columns.
func (c *checker) rights(ctx context.Context, t *table) error {
	missing := map[string][]string{}
	name := TableName(t.Outbox)
	for _, u := range columns.UsedColumns(&t.Layout) {
		col := Ident(u.Column)
		for right, text := range map[string]string{
			"SELECT": "SELECT " + col + " FROM " + name + " WHERE 1 = 0",
			"UPDATE": "UPDATE " + name + " SET " + col + " = NULL WHERE 1 = 0", // needs no SELECT
		} {
			if right == "UPDATE" && !u.Write {
				continue
			}
			allowed, err := c.canRun(ctx, text)
			if err != nil {
				return err
			}
			if !allowed {
				missing[right] = append(missing[right], col)
			}
		}
	}

	srv := &c.conn.server
	for _, right := range []string{"SELECT", "UPDATE"} {
		if list := strings.Join(missing[right], ", "); list != "" {
			c.AddFault(fmt.Sprintf("%s lacks %s on %s (%s)", Account(srv.account), right, name, list),
				fmt.Sprintf("GRANT %s (%s) ON %s TO %s;", right, list, qualifiedName(t.Outbox, srv), Account(srv.account)))
		}
	}

	if !deletesRows(t.Outbox) {
		return nil
	}
	allowed, err := c.canRun(ctx, "DELETE FROM "+name+" WHERE 1 = 0")
	if err == nil && !allowed {
		c.AddFault(fmt.Sprintf("%s lacks DELETE on %s", Account(srv.account), name), fmt.Sprintf("GRANT DELETE ON %s TO %s;", qualifiedName(t.Outbox, srv), Account(srv.account)))
	}

	return err
}

// deletesRows reports whether the relay itself deletes rows of an outbox.
func deletesRows(o *store.Outbox) bool {
	return o.Layout.DeleteDelivered && o.Layout.State != store.StateNone || o.Retention > 0
}

// grantOutbox returns the GRANT for everything that the relay does with an outbox's
// table.
func grantOutbox(s *server, o *store.Outbox) string {
	var read, write []string
	for _, u := range columns.UsedColumns(&o.Layout) {
		read = append(read, Ident(u.Column))
		if u.Write {
			write = append(write, Ident(u.Column))
		}
	}

	rights := "SELECT (" + strings.Join(read, ", ") + ")"
	if len(write) > 0 {
		rights += ", UPDATE (" + strings.Join(write, ", ") + ")"
	}

	if deletesRows(o) {
		rights += ", DELETE"
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s;", rights, qualifiedName(o, s), Account(s.account))
}

// qualifiedName returns a table's name with its database, as GRANT needs it.
func qualifiedName(o *store.Outbox, s *server) string {
	if o.Schema != "" {
		return TableName(o)
	}
	return Ident(s.database, o.Table)
}
