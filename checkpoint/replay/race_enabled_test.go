//go:build race

package replay_test

// step is the number of calls from one crash to the next. It is larger here because
// SQLite, which is Go code in this test, is many times slower with the race detector.
const step = 13
