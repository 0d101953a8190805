// Package blackbox tests the built program from outside: it reads only what a
// user can see, the rows, the requests, the exit codes, the messages and the
// metrics. It has no code but its tests.
package blackbox
