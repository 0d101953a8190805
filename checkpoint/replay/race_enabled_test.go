//go:build race

package replay_test

// step is how many calls are between those at which a process dies: SQLite, which is Go
// code here, is many times slower with the race detector.
const step = 13
