//go:build !race

package replay_test

// step is how many calls are between those at which a process dies.
const step = 1
