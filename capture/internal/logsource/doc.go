// Package logsource is shared by the sources that read a log. It keeps acknowledgements, finds
// the columns to read, and turns the rows of a transaction into batches of items.
package logsource
