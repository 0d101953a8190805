package mysql_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/outbox/mysql"
	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestDiagnose(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			url := f.Database(t)
			const user = "writer_diagnose"
			servers.ExecMySQL(t, url, `CREATE TABLE whole (ID VARCHAR(36) PRIMARY KEY, payload TEXT NOT NULL, extra TEXT, seq BIGINT UNIQUE AUTO_INCREMENT,
				size INT AS (LENGTH(payload)) STORED, at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))`,
				`CREATE TABLE lacking (id VARCHAR(36) PRIMARY KEY, payload TEXT NOT NULL, extra VARCHAR(9) NOT NULL, shard INT NOT NULL)`,
				"CREATE USER "+user, "GRANT UPDATE ON whole TO "+user)
			t.Cleanup(func() { servers.ExecMySQL(t, url, "DROP USER "+user) })
			outboxtest.RunDiagnose(t, &outboxtest.Diagnosis{
				Diagnose: mysql.Diagnose, URL: url, Powerless: strings.Replace(url, "root@", user+"@", 1),
				Apply: func(remedy string) { servers.ExecMySQL(t, url, strings.ReplaceAll(remedy, "…", "0")) },
			})
		})
	}
}
