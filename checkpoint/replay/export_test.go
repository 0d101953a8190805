package replay

import "time"

// Small has a desk copy few rows at a time, and play them after few.
func (d *Controller) Small(page, segment int) { d.pageRows, d.segmentRows = page, segment }

// LookEach has a desk look more often than it does whether the server still has the log
// of its checkpoints.
func (d *Controller) LookEach(every time.Duration) { d.retentionInterval = every }

// MarkFor has a desk wait for less than it does for a marker of its checkpoints.
func (d *Controller) MarkFor(bound time.Duration) { d.markers.timeout = bound }

// SmallPage is throttledPageRows.
const SmallPage = throttledPageRows
