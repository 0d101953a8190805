package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestConnectionLimits: connection limits of the role and the database are reported if
// they leave too few sessions, and a relay's own sessions do not count against them.
func TestConnectionLimits(t *testing.T) {
	for _, version := range servers.Versions() {
		t.Run(fmt.Sprint("pg", version), func(t *testing.T) {
			t.Parallel()
			admin := servers.Database(t, version)
			database := databaseOf(t, admin)
			role := "limited_" + database
			servers.Exec(t, admin, "CREATE ROLE "+role+" LOGIN", "CREATE TABLE box (id text PRIMARY KEY)", "GRANT CREATE ON DATABASE "+database+" TO "+role)
			t.Cleanup(func() { dropRole(t, admin, role) })
			url := strings.Replace(admin, "postgres@", role+"@", 1)
			examine := examiner(t, url, store.Outbox{Name: "box", Table: "box", Kind: "EVENT", Layout: store.FlowCatalyst()})
			for _, of := range []string{"ROLE " + role, "DATABASE " + database} {
				quoted := strings.Replace(of, " ", ` "`, 1) + `"`
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT 11")
				mended(t, admin, examine, "connections", store.GradeAdvice, quoted+" has CONNECTION LIMIT 11")
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT 12") // the rig's control session counts as one
				// The session that set it may not have ended yet.
				for end := time.Now().Add(10 * time.Second); ; {
					found := findingsOf(examine(), "connections")
					if len(found) == 1 && found[0].Grade == store.GradeOK {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("%s, 12: %+v", of, found)
					}
				}
				other := servers.Connect(t, url)
				if found := findingsOf(examine(), "connections"); len(found) != 2 || found[1].Grade != store.GradeAdvice || !strings.Contains(found[1].Text, "others use 1") {
					t.Errorf("%s, 12 and another session: %+v", of, found)
				}
				_ = other.Close(t.Context())
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT 4")
				mended(t, admin, examine, "connections", store.GradeFault, quoted+" has CONNECTION LIMIT 4")
				servers.Exec(t, admin, "ALTER "+of+" CONNECTION LIMIT -1")
			}
		})
	}
}
