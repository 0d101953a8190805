package mysql

import "context"

// Publish does nothing: the binlog holds every table, and the table of the markers
// is the store's.
func (s *Source) Publish(context.Context) error { return nil }

// Script returns no statements, for the same reason.
func (s *Source) Script() string { return "" }
