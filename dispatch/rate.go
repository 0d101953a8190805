package dispatch

import (
	"errors"
	"strconv"
	"strings"
)

// Rate is a number of requests per second. Its text is a number and a unit of time, for
// example 100/s, 600/m or 1000/h.
type Rate float64

// rateUnit is a unit of rates.
type rateUnit struct {
	name    string
	seconds float64
}

func rateUnits() []rateUnit { return []rateUnit{{"/s", 1}, {"/m", 60}, {"/h", 3600}} }

// ParseRate parses a rate.
func ParseRate(text string) (Rate, error) {
	for _, u := range rateUnits() {
		if number, ok := strings.CutSuffix(strings.TrimSpace(text), u.name); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err == nil && n >= 0 && n <= 1e9 {
				return Rate(n / u.seconds), nil
			}
		}
	}
	return 0, errors.New("is not a rate such as 100/s, 600/m or 1000/h")
}

// String returns the rate in the first unit in which it is a whole number.
func (r Rate) String() string {
	for _, u := range rateUnits() {
		if n := float64(r) * u.seconds; strconv.FormatFloat(n, 'g', 12, 64) == strconv.FormatInt(int64(n+0.5), 10) {
			return strconv.FormatInt(int64(n+0.5), 10) + u.name
		}
	}
	return strconv.FormatFloat(float64(r), 'g', 12, 64) + "/s"
}
