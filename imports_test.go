package sluicebox

import (
	"os/exec"
	"strings"
	"testing"
)

// A program that embeds a relay links the driver of its own database only.
func TestImportsOfDrivers(t *testing.T) {
	drivers := map[string]string{
		"github.com/jackc/pgx": "postgres", "github.com/go-mysql-org": "mysql", "go.mongodb.org": "mongo", "modernc.org/sqlite": "sqlite", "github.com/prometheus": "",
	}
	for _, db := range []string{"", "postgres", "mysql", "mongo", "sqlite"} {
		pkg := "."
		if db != "" {
			pkg = "./capture/" + db
		}
		deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for dep := range strings.Lines(string(deps)) {
			for driver, of := range drivers {
				if strings.HasPrefix(dep, driver) && (of != db || db == "") {
					t.Errorf("%s imports %s", pkg, dep)
				}
			}
		}
	}
}
