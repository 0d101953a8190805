package store

import "strings"

// Nearest returns the candidate that a mistyped word was most likely meant to be, ""
// if none is near: within one edit, and one more for every four bytes, or the same but
// for its case and its separators.
func Nearest(word string, candidates []string) string {
	if len(word) > maxCompared {
		return ""
	}
	best, least := "", 1+len(word)/4
	for _, c := range candidates {
		if d := distance(word, c); d <= least && (best == "" || d < least) {
			best, least = c, d
		}
	}
	if best == "" {
		folded := fold(word)
		for _, c := range candidates {
			if fold(c) == folded {
				return c
			}
		}
	}
	return best
}

// fold makes maxRetries, max_retries and max-retries one word.
func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "").Replace(s))
}

// maxCompared is the most bytes of a word that is compared. No key has as many, and no
// identifier of PostgreSQL or MySQL more.
const maxCompared = 64

// distance is the number of bytes to insert, delete, replace or swap with
// their neighbour that makes a into b.
func distance(a, b string) int {
	if len(a) > maxCompared || len(b) > maxCompared {
		return maxCompared
	}
	var before, last, row [maxCompared + 1]int
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
