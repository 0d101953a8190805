// Package leader ensures that one relay of a name leads at a time, on any database.
//
// A Candidate competes for the store's lock: it polls for the lock, and stands by while
// another relay holds it. It does not wait in the database, because a waiting statement
// would keep old row versions there. The relay that acquires the lock has a Tenure. The
// tenure pings the database each second to confirm the lock, and the relay checks it before
// each action that only a leader may take.
//
// Three times are nested:
//
//   - The database keeps the lock for at least store.MinLockLease (4 s) after a ping.
//   - The leader pauses 1 s earlier if no ping was answered: it starts nothing until the
//     next answer, so a database that is slow for a moment costs a pause only.
//   - Leadership ends once the session is lost or the database may have released the lock.
//
// The lock provides liveness only. A relay that froze between the check of its tenure and
// an action acts late: the store refuses its writes by their epoch, and its deliveries are
// duplicates of its successor's.
package leader
