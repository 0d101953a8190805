// Package leader has one relay of a name lead at a time, whatever the database.
//
// A Candidate competes for the store's lock: it tries, and stands by while
// another relay holds it. It tries again and again instead of waiting in the
// database, which would keep old row versions for a statement that waits. Who
// gets the lock has a Tenure, which asks the database each second whether it is
// still held, and which others ask before they do what only a leader may do.
//
// Three spans fit into each other. The database keeps the lock for at least
// store.MinLockLease after a ping. A leader is in doubt a second before that: it
// starts nothing until a ping is answered again, which takes a database that is
// slow for a moment for what it is. It is no leader any more once its session is
// lost or the database may have given the lock away.
//
// The lock gives liveness only. A relay that was frozen between asking its tenure
// and acting acts late; what it writes is refused by its epoch, and what it sends
// is a duplicate of what its successor has sent or will send.
package leader
