package replay

import "time"

// Small has a desk copy few rows at a time, and play them after few.
func (d *Desk) Small(page, segment int) { d.pageRows, d.segmentRows = page, segment }

// LookEach has a desk look more often than it does whether the server still has the log
// of its checkpoints.
func (d *Desk) LookEach(every time.Duration) { d.askEvery = every }

// MarkFor has a desk wait for less than it does for a marker of its checkpoints.
func (d *Desk) MarkFor(bound time.Duration) { d.marks.bound = bound }

// SmallPage is smallPage.
const SmallPage = smallPage
