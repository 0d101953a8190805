package sqlite_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/outbox/sqlite"
)

func TestDiagnose(t *testing.T) {
	db := open(t)
	exec := func(statement string) {
		t.Helper()
		if _, err := db.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE whole (seq INTEGER PRIMARY KEY NOT NULL, ID TEXT UNIQUE NOT NULL, payload TEXT NOT NULL, extra TEXT, size INT NOT NULL AS (length(payload)))`)
	exec("CREATE TABLE lacking (id TEXT PRIMARY KEY, payload TEXT NOT NULL, extra TEXT NOT NULL, shard INT NOT NULL)")
	outboxtest.RunDiagnose(t, &outboxtest.Diagnosis{
		Diagnose: sqlite.Diagnose, URL: "sqlite://" + db.path,
		Apply: func(string) { // both remedies are to create the table again
			exec("DROP TABLE lacking")
			exec("CREATE TABLE lacking (id TEXT PRIMARY KEY, payload TEXT NOT NULL, extra TEXT NOT NULL DEFAULT '', shard INT NOT NULL DEFAULT 0)")
		},
	})
}
