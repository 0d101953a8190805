// Package logged says what a source reads out of a log.
package logged

import "github.com/sluicebox/sluicebox/store"

// CapturedColumns lists the columns that are read out of the log, in no order of a table's.
func CapturedColumns(c *store.Columns) []string {
	var names []string
	for _, name := range []string{c.ID, c.Kind, c.Group, c.Payload, c.RetryCount} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}
