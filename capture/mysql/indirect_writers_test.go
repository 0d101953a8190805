package mysql

import (
	"maps"
	"slices"
	"testing"
)

func TestNamesInStatements(t *testing.T) {
	for text, want := range map[string]bool{
		"insert into orders values (1)": true, "insert into `orders` (id)": true, "insert into shop.orders select": true,
		"update a, orders set": true, "orders": true, "insert into orders_archive": false, "insert into my_orders": false,
		"insert into orders2 select * from orders": true, "insert into bestellungen": false, "insert into größe_orders": false, "": false,
	} {
		if got := containsWord(text, "orders"); got != want {
			t.Errorf("%q names orders: %t", text, got)
		}
	}
}

func TestVisibleTriggers(t *testing.T) {
	for grant, want := range map[string][]string{
		"GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION":             {"*"},
		"GRANT SELECT, INSERT, TRIGGER, EVENT ON *.* TO `root`@`%`":                       {"*"},
		"GRANT SELECT, TRIGGER ON `my\\_shop`.* TO `relay`@`%`":                           {"my_shop"},
		"GRANT TRIGGER ON `shop`.`orders` TO `relay`@`%`":                                 nil,
		"GRANT SELECT, UPDATE (status) ON `shop`.`outbox_events` TO `relay`@`%`":          nil,
		"GRANT USAGE ON *.* TO `relay`@`%`":                                               nil,
		"GRANT APPLICATION_PASSWORD_ADMIN,TRIGGER_ADMIN ON *.* TO `root`@`%`":             nil,
		"GRANT ALL PRIVILEGES ON `shop`.* TO `relay`@`%` IDENTIFIED BY PASSWORD '*XXXXX'": {"shop"},
	} {
		if got := slices.Sorted(maps.Keys(visibleTriggerSchemas([]string{grant}))); !slices.Equal(got, want) {
			t.Errorf("%s shows the triggers of %v, want %v", grant, got, want)
		}
	}
}

// TestStatementSummary checks that a logged reason contains no value.
func TestStatementSummary(t *testing.T) {
	for text, want := range map[string]string{
		"INSERT INTO orders (a) VALUES ('secret')": "INSERT INTO orders …",
		"update  t\nset a = 'secret'":              "update t …",
		"LOAD \x01\x02\xffsecret":                  "LOAD …",
		"SELECT `shop`.`f`(1)":                     "SELECT `shop`.`f` …",
	} {
		if got := statementSummary([]byte(text)); got != want {
			t.Errorf("%q: got summary %q, want %q", text, got, want)
		}
	}
}
