//go:build !unix || solaris || illumos

package main

import "os"

// terminalHeight returns 0, because the height is unknown on this system.
func terminalHeight(*os.File) int { return 0 }
