package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sluicebox/sluicebox/store/mysql"
)

// TestNoSession checks the errors of a server without a free session: they are
// unreachable errors, not setup errors.
func TestNoSession(t *testing.T) {
	for number, want := range map[uint16]string{1040: "raise max_connections", 1203: "max_user_connections of the server", 1226: "ALTER USER"} {
		err := fmt.Errorf("connect: %w", mysql.Explain(&driver.MySQLError{Number: number, Message: "as it says"}))
		problem, remedy, ok := mysql.ExplainNoSession(err)
		if !ok || !strings.HasSuffix(problem, "as it says") || !strings.Contains(remedy, want) || !mysql.Unreachable(err) {
			t.Errorf("%d: %q, %q, %t", number, problem, remedy, ok)
		}
	}
	for _, err := range []error{errors.New("another"), &driver.MySQLError{Number: 1045}} {
		if problem, _, ok := mysql.ExplainNoSession(err); ok {
			t.Errorf("%v: %q", err, problem)
		}
	}
}
