package logsource

import "github.com/sluicebox/sluicebox/store"

// CapturedColumns returns the columns that are read from the log. Their order is not the
// table's.
func CapturedColumns(c *store.Columns) []string {
	var names []string
	for _, name := range []string{c.ID, c.Kind, c.Group, c.Payload, c.RetryCount} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}
