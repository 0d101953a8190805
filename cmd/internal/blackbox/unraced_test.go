//go:build !race

package blackbox

// raced is set if the program under test is built with the race detector.
const raced = false
