package mysql

import "context"

// Publish does nothing, because the binlog contains every table, and the store creates
// the table of markers.
func (s *Source) Publish(context.Context) error { return nil }

// Script returns no statements for the same reason.
func (s *Source) Script() string { return "" }
