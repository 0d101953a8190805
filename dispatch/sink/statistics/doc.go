// Package statistics counts rows by kind and type instead of sending them.
//
// It accepts every row. The counts go to the relay's metrics, and a summary of them to its log at
// an interval. They begin at 0 when the relay starts or takes over the leadership. A row that is
// delivered twice after a crash counts twice.
package statistics
