package propose

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// meanings returns the words that stand for each status, squashed, the most usual first.
func meanings() map[store.Status][]string {
	return map[store.Status][]string{
		store.Pending:    strings.Fields("pending new ready created unsent queued waiting open todo unpublished notsent unprocessed init initial enqueued scheduled available outstanding tosend registered stored received n p"),
		store.Processing: strings.Fields("processing inprogress inprocess sending claimed locked running inflight picked publishing dispatching started working reserved leased"),
		store.Completed:  strings.Fields("completed complete sent delivered done published processed dispatched success succeeded successful finished ok acked acknowledged relayed consumed handled y s d c"),
		store.Failed:     strings.Fields("failed fail failure error errored dead deadletter deadlettered rejected aborted exhausted undeliverable poison giveup givenup f e"),
	}
}

// meaning returns the status that a word stands for, 0 if it is not known, and how usual it is.
func meaning(word string) (s store.Status, rank int) {
	for status, words := range meanings() {
		if i := slices.Index(words, squash(word)); i >= 0 {
			return status, i
		}
	}
	return 0, 0
}

// statusNames are the keys of the sections words and numbers.
func statusKeys() []store.Status {
	return []store.Status{store.Pending, store.Processing, store.Completed, store.Failed}
}

// addWords adds the words of a status column.
func (g *guesser) addWords(s *stateKeys, c *store.ColumnInfo) {
	v := valuesOf(c)
	used, notes := map[store.Status]string{}, map[store.Status]note{}
	used[store.Pending], notes[store.Pending] = pendingWord(c, &v)
	for _, status := range statusKeys()[1:] {
		used[status], notes[status] = knownWord(&v, status, used[store.Pending])
	}
	s.keys.add("state", "words", because(sure, "%s is of type %s", c.Name, c.Type))
	if used[store.Completed] == "" && !chooseCompleted(c, &v, used, notes) {
		s.keys.add("delete-delivered", true, because(decide, "%s has no value for delivered rows, so they are deleted; or add one to the type and write it in words.completed", c.Name))
	}
	var words section
	for _, status := range statusKeys() {
		if used[status] != "" {
			words.add(strings.ToLower(status.String()), used[status], notes[status])
		}
	}
	s.keys.add("words", words, note{})
	if used[store.Processing] != "" {
		g.addClaim(s)
	}
	g.remarkOthers(c, v.list, used)
}

// knownWord returns the most usual word for a status among the known values, except one.
func knownWord(v *values, status store.Status, except string) (word string, n note) {
	best := -1
	var all []string
	for _, value := range v.list {
		is, rank := meaning(value)
		if is != status || value == except {
			continue
		}
		all = append(all, value)
		if best < 0 || rank < best {
			word, best = value, rank
		}
	}
	rest := slices.DeleteFunc(all, func(value string) bool { return value == word })
	switch {
	case word == "":
		return "", note{}
	case len(rest) > 0:
		return word, because(decide, "%s, like %s", v.from, strings.Join(rest, ", "))
	case len(word) == 1:
		return word, because(decide, "%s; a letter says little", v.from)
	case v.complete:
		return word, because(sure, "%s", v.from)
	}
	return word, because(likely, "%s", v.from)
}

// pendingWord returns the word of a row that is to be sent. It prefers the default, because
// that is what a new row gets.
func pendingWord(c *store.ColumnInfo, v *values) (string, note) {
	is, _ := meaning(c.Default)
	if c.Default != "" && (is == 0 || is == store.Pending) {
		return c.Default, because(sure, "the default of the column")
	}
	if word, n := knownWord(v, store.Pending, ""); word != "" {
		return word, n
	}
	if c.Default != "" {
		return c.Default, because(decide, "the default of the column, which new rows get if a service names no other")
	}
	if v.complete {
		first := slices.DeleteFunc(slices.Concat(unknownValues(v, ""), v.list), func(value string) bool { return value == "" })
		return first[0], because(decide, "%s; the value of a row that is to be sent", v.from)
	}
	return fitting(c, "", nil, "PENDING", "NEW", "N", "P", "0"), because(decide, "an assumption: no row and no default shows the value of a row that is to be sent")
}

// chooseCompleted guesses the word for delivered rows, and reports whether the column can hold
// one.
func chooseCompleted(c *store.ColumnInfo, v *values, used map[store.Status]string, notes map[store.Status]note) bool {
	unknown := unknownValues(v, used[store.Pending])
	switch {
	case v.complete && len(unknown) == 0:
		return false
	case v.complete:
		used[store.Completed], notes[store.Completed] = unknown[0], because(decide, "%s; the value of a delivered row", v.from)
	default:
		words := []string{"COMPLETED", "SENT", "S", "D", "1"}
		if len(used[store.Pending]) == 1 {
			words = words[2:] // a letter for each
		}
		used[store.Completed] = fitting(c, used[store.Pending], used, words...)
		notes[store.Completed] = because(decide, "an assumption: no row shows the value of a delivered row")
	}
	return true
}

// unknownValues returns the values without a known meaning, except one.
func unknownValues(v *values, except string) (list []string) {
	for _, value := range v.list {
		if is, _ := meaning(value); is == 0 && value != "" && value != except {
			list = append(list, value)
		}
	}
	return list
}

// fitting returns the first word that the column can hold and that is not used, in the case of
// another one.
func fitting(c *store.ColumnInfo, like string, used map[store.Status]string, words ...string) string {
	for _, word := range words {
		if like != "" && like == strings.ToLower(like) {
			word = strings.ToLower(word)
		}
		if (c.Length == 0 || len(word) <= c.Length) && !slices.ContainsFunc(statusKeys(), func(s store.Status) bool { return used[s] == word }) {
			return word
		}
	}
	return words[len(words)-1] + "?"
}

// listedNumber matches a number with its meaning in the comment of a column, for example
// "0 new, 1 = sent".
var listedNumber = regexp.MustCompile(`(-?\d{1,6})\s*[-:=–)]*\s*([A-Za-z_]+)`)

// numberMeanings returns the numbers that a comment explains.
func numberMeanings(comment string) map[store.Status]int {
	found := map[store.Status]int{}
	for _, m := range listedNumber.FindAllStringSubmatch(comment, -1) {
		n, _ := strconv.Atoi(m[1]) // it matches digits
		if s, _ := meaning(m[2]); s != 0 {
			if _, taken := found[s]; !taken {
				found[s] = n
			}
		}
	}
	return found
}

// addNumbers adds the numbers of a status column.
func (g *guesser) addNumbers(s *stateKeys, c *store.ColumnInfo) {
	v := valuesOf(c)
	var seen []int
	for _, value := range v.list {
		if n, err := strconv.Atoi(value); err == nil {
			seen = append(seen, n)
		}
	}
	slices.Sort(seen)
	explained := numberMeanings(c.Comment)
	pending, why := pendingNumber(c, explained, seen)
	completed, ok := explained[store.Completed]
	whyCompleted := because(sure, "the comment of the column")
	if !ok || completed == pending {
		completed, whyCompleted = completedNumber(c, pending, seen), because(decide, "an assumption: the value of a delivered row%s", listed(seen))
	}
	numbers := section{{"pending", pending, why}}
	used := map[int]bool{pending: true, completed: true}
	if n, ok := explained[store.Processing]; ok && !used[n] {
		used[n] = true
		numbers.add("processing", n, because(sure, "the comment of the column"))
		defer g.addClaim(s)
	}
	numbers.add("completed", completed, whyCompleted)
	if n, ok := explained[store.Failed]; ok && !used[n] {
		used[n] = true
		numbers.add("failed", n, because(sure, "the comment of the column"))
	}
	s.keys.add("state", "numbers", because(sure, "%s is of type %s", c.Name, c.Type))
	s.keys.add("numbers", numbers, note{})
	seen = slices.Compact(slices.DeleteFunc(seen, func(n int) bool { return used[n] }))
	if len(seen) > 0 {
		g.remarks = append(g.remarks, fmt.Sprintf("Rows with another %s are left alone: %s.", c.Name, numbersText(seen)))
	}
}

func numbersText(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ", "), "[]")
}

// listed says which values there are.
func listed(seen []int) string {
	if len(seen) == 0 {
		return ""
	}
	return "; there are " + numbersText(slices.Compact(slices.Clone(seen)))
}

// pendingNumber returns the number of a row that is to be sent.
func pendingNumber(c *store.ColumnInfo, explained map[store.Status]int, seen []int) (int, note) {
	if n, ok := explained[store.Pending]; ok {
		return n, because(sure, "the comment of the column")
	}
	if n, err := strconv.Atoi(c.Default); err == nil {
		return n, because(sure, "the default of the column")
	}
	if len(seen) > 0 && !slices.Contains(seen, 0) {
		return seen[0], because(decide, "an assumption: the lowest value that there is")
	}
	return 0, because(decide, "an assumption: the value of a row that is to be sent")
}

// completedNumber returns the lowest number above that of a pending row that there is, else the
// next one.
func completedNumber(c *store.ColumnInfo, pending int, seen []int) int {
	for _, n := range seen {
		if n > pending {
			return n
		}
	}
	if c.Max > 0 && int64(pending) >= c.Max {
		return pending - 1
	}
	return pending + 1
}
