package replay

import "time"

// Small makes a Controller copy pages and segments of few rows.
func (d *Controller) Small(page, segment int) { d.pageRows, d.segmentRows = page, segment }

// LookEach sets how often a Controller checks whether the server still has the log of
// its checkpoints.
func (d *Controller) LookEach(every time.Duration) { d.retentionInterval = every }

// MarkFor sets how long a Controller waits for a marker of its checkpoints.
func (d *Controller) MarkFor(bound time.Duration) { d.markers.timeout = bound }

// SmallPage is throttledPageRows.
const SmallPage = throttledPageRows
