//go:build !race

package replay_test

// step is the number of calls from one crash to the next.
const step = 1
