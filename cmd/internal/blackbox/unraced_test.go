//go:build !race

package blackbox

// raced is whether the program under test is built with the race detector.
const raced = false
