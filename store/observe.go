package store

import "strconv"

// StatusColumns returns the columns that StatusOf reads, in a fixed order. A layout without a
// state has none.
func (l *Layout) StatusColumns() []string {
	c := &l.Columns
	var all []string
	switch l.State {
	case StateWords, StateNumbers:
		all = []string{c.Status}
	case StateBoolean:
		all = []string{c.Status, c.Claimed}
	case StateTimestamps:
		all = []string{c.Delivered, c.Failed, c.Claimed}
	}
	var named []string
	for _, name := range all {
		if name != "" {
			named = append(named, name)
		}
	}
	return named
}

// StatusOf returns the status of a row that another program may have written. column returns
// the text of one of the StatusColumns, nil for NULL. known is false if the reader does not
// have the column, for example because the log has only the columns that changed. The result
// is 0 if the columns do not tell, or if the value stands for no status.
func (l *Layout) StatusOf(column func(name string) (text []byte, known bool)) Status {
	c := &l.Columns
	isSet := func(name string) (set, known bool) {
		if name == "" {
			return false, true
		}
		text, known := column(name)
		return known && text != nil, known
	}
	switch l.State {
	case StateWords, StateNumbers:
		text, known := column(c.Status)
		if !known || text == nil {
			return 0
		}
		return l.storedStatus(string(text))
	case StateBoolean:
		text, known := column(c.Status)
		if done, err := strconv.ParseBool(string(text)); known && err == nil && done {
			return Completed
		}
		return claimStatus(known)(isSet(c.Claimed))
	case StateTimestamps:
		delivered, deliveredKnown := isSet(c.Delivered)
		failed, failedKnown := isSet(c.Failed)
		switch {
		case delivered:
			return Completed
		case failed:
			return Failed
		}
		return claimStatus(deliveredKnown && failedKnown)(isSet(c.Claimed))
	}
	return 0
}

// claimStatus returns the status of a row that is not settled, by its claim column. unsettled
// is false if the reader does not know that.
func claimStatus(unsettled bool) func(claimed, known bool) Status {
	return func(claimed, known bool) Status {
		switch {
		case claimed:
			return Processing
		case known && unsettled:
			return Pending
		}
		return 0
	}
}

// storedStatus returns the status of a value of the status column.
func (l *Layout) storedStatus(text string) Status {
	if l.State == StateWords {
		for s, word := range l.Words {
			if word == text {
				return s
			}
		}
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	for s, number := range l.Numbers {
		if number == n {
			return s
		}
	}
	for _, number := range l.FailedNumbers {
		if number == n {
			return Failed
		}
	}
	return 0
}
