package chain

// SetMax sets the lanes of half of c.
func SetMax[K comparable](c *Chains[K], lanes int) { c.max = lanes }
