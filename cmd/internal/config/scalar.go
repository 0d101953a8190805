package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. Its text is a whole number with an optional unit, for
// example 64MiB, 1GiB or 500kB.
type Size int64

// unit is a unit of bytes.
type unit struct {
	name  string
	bytes int64
}

// units returns the units. Binary units come first, and a unit precedes its suffixes,
// because ParseSize takes the first match.
func units() []unit {
	return []unit{
		{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
	}
}

// ParseSize parses a size.
func ParseSize(text string) (Size, error) {
	number, factor := strings.TrimSpace(text), int64(1)
	for _, u := range units() {
		if rest, ok := strings.CutSuffix(number, u.name); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}

	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("is not a size such as 64MiB, 1GiB or 500kB")
	}

	if n > math.MaxInt64/factor {
		return 0, fmt.Errorf("exceeds the largest size")
	}
	return Size(n * factor), nil
}

// String returns the size in its largest exact binary unit.
func (s Size) String() string {
	for _, u := range units()[:3] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}
