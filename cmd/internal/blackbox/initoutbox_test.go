package blackbox

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// init --outbox --apply creates a table once. The second time it fails, names the table, and
// changes nothing.
func TestInitOutbox(t *testing.T) {
	t.Parallel()
	twice := func(t *testing.T, source string) {
		t.Helper()
		args := []string{"init", "--outbox", "outbox-messages", "--table", "letters", "--source", source, "--apply"}
		if out, errs, code := command(t, nil, args...); code != 0 || !strings.Contains(out, "table: letters, layout: outbox-messages") {
			t.Fatalf("exit code %d, want 0\n%s%s", code, out, errs)
		}
		if out, errs, code := command(t, nil, args...); code != 1 || out != "" || !strings.Contains(errs, "create table letters: ") {
			t.Errorf("again: exit code %d, want 1 with the table's name\n%s%s", code, out, errs)
		}
	}
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "team.db")
		db, err := sql.Open("sqlite", "file:"+path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		run(t, db, "CREATE TABLE orders (id)") // the service creates the file
		twice(t, "sqlite://"+path)
		run(t, db, "INSERT INTO letters (id, type, payload) VALUES ('1', 'EVENT', '{}')")
	})
	t.Run("mongo", func(t *testing.T) {
		chooseMongo(t)
		source := servers.Mongo(t)
		twice(t, source)
		indexes, err := servers.OpenMongo(t, source).Collection("letters").Indexes().ListSpecifications(t.Context())
		if err != nil || len(indexes) != 2 || indexes[1].KeysDocument.Lookup("status").AsInt64() != 1 {
			t.Errorf("indexes %v, want one of the status beside that of the id: %v", indexes, err)
		}
	})
	onHosts(t, kinds(t), func(t *testing.T, h host) {
		source := h.database(t)
		twice(t, source)
		if _, err := connect(t, source).exec("INSERT INTO letters (id, type, payload) VALUES ('1', 'EVENT', '{}')"); err != nil {
			t.Error(err)
		}
	})
}
