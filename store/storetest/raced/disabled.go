//go:build !race

package raced

// Enabled reports whether the tests were built with the race detector.
const Enabled = false
