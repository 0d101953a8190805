package mongo

import "context"

// Publish does nothing: the oplog holds every collection, and that of the markers comes
// with the first of them.
func (s *Source) Publish(context.Context) error { return nil }

// Script returns no statements, for the same reason.
func (s *Source) Script() string { return "" }
