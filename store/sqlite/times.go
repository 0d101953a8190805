package sqlite

import (
	"database/sql/driver"
	"strconv"
	"strings"
	"time"
)

// timeForm is the format in which SQLite's strftime writes a time with milliseconds. It
// sorts, and SQLite's date and time functions parse it.
const timeForm = "2006-01-02 15:04:05.000"

// commitForm is timeForm with nanoseconds, the full precision of a commit time.
const commitForm = timeForm + "000000"

func formatTime(t time.Time) string { return t.UTC().Format(timeForm) }

// timeValue returns a time in the type of a column.
func timeValue(c column, t time.Time) any {
	if c.affinity == affinityInteger {
		return t.UnixMilli()
	}
	return formatTime(t)
}

// maxUnixSeconds is the largest integer that is read as seconds and not as milliseconds. As
// seconds it is in the year 5138, as milliseconds in March 1973.
const maxUnixSeconds = 100_000_000_000

// readTime parses a time that another program may have written. It is false for NULL and for
// an invalid time.
func readTime(v driver.Value) (time.Time, bool) {
	switch x := v.(type) {
	case int64:
		if x <= maxUnixSeconds {
			return time.Unix(x, 0).UTC(), true
		}
		return time.UnixMilli(x).UTC(), true
	case []byte:
		return parseTime(string(x))
	case string:
		return parseTime(x)
	}
	return time.Time{}, false
}

// parseTime parses the formats of SQLite's functions, times with an offset, and an integer
// that a TEXT column has converted to text.
func parseTime(text string) (time.Time, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return readTime(n)
	}
	text = strings.Replace(strings.TrimSpace(text), "T", " ", 1)
	for _, form := range []string{
		"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05 Z07:00",
		"2006-01-02 15:04", "2006-01-02",
	} {
		if t, err := time.Parse(form, text); err == nil {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}
