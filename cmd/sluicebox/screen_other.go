//go:build !unix || solaris || illumos

package main

import "os"

// height is how many lines a terminal shows: here nobody knows.
func terminalHeight(*os.File) int { return 0 }
