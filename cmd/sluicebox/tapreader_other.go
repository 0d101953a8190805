//go:build !unix || solaris || illumos

package main

import "os"

// unread reports whether nobody reads a pipe any more: here nobody knows before
// something is written.
func isOutputClosed(*os.File) bool { return false }
