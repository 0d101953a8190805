// Package logsource is shared by the sources that read a log. It keeps acknowledgements, lists
// the columns to read, and limits the size of a batch.
package logsource
