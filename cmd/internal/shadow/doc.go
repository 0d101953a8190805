// Package shadow compares a polling processor with the relay that would replace it, without
// touching either's work. It follows the rows of the outbox tables through the log
// (capture.Watcher), and writes and sends nothing.
//
// Comparer is pure: changes in, findings out. Shadow feeds it, logs its findings at an interval
// and reports them.
//
// The order of a group is that of the commits, as for the relay. A row is out of order if it was
// delivered after a later row of its group: the update that marks it as delivered was committed
// after that of the later row, in another transaction. Rows that one transaction marks count as
// delivered together.
package shadow
