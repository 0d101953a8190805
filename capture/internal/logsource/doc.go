// Package logsource has what the sources that read a log share: acknowledgements, the columns
// to read, the limits of a batch.
package logsource
