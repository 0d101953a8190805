package mongo

import "context"

// Publish does nothing: the oplog contains every collection, and the first marker creates
// the marker collection.
func (s *Source) Publish(context.Context) error { return nil }

// Script returns no statements, for the same reason.
func (s *Source) Script() string { return "" }
