package replay

import "time"

// SetSegmentRows makes a Controller copy pages and segments of few rows.
func (d *Controller) SetSegmentRows(page, segment int) {
	d.limits.pageRows, d.limits.segmentRows = page, segment
}

// SetRetentionInterval sets how often a Controller checks whether the server still
// has the log of its checkpoints.
func (d *Controller) SetRetentionInterval(every time.Duration) { d.limits.retentionInterval = every }

// SetMarkerTimeout sets how long a Controller waits for a marker of its checkpoints.
func (d *Controller) SetMarkerTimeout(bound time.Duration) { d.limits.markerTimeout = bound }

// SmallPage is throttledPageRows.
const SmallPage = throttledPageRows
