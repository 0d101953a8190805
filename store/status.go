package store

import (
	"context"
	"strconv"
)

// Status is the state of a row.
type Status uint8

// States of a row. They start at 1, so that an unset status is noticed.
const (
	Pending Status = iota + 1
	Processing
	Completed
	Failed
)

// String returns the word in the README and the logs.
func (s Status) String() string {
	switch s {
	case Pending:
		return "PENDING"
	case Processing:
		return "PROCESSING"
	case Completed:
		return "COMPLETED"
	case Failed:
		return "FAILED"
	}
	return "UNKNOWN"
}

// Settled reports whether the state is final.
func (s Status) Settled() bool { return s == Completed || s == Failed }

// Reason is the class of a failure, for layouts that store a code for it.
type Reason uint8

// Reasons that layouts distinguish.
const (
	ReasonNone         Reason = iota
	ReasonBadRequest          // 400 and other 4xx
	ReasonUnauthorized        // 401
	ReasonForbidden           // 403
	ReasonGateway             // 502, 503, 504 and no connection
	ReasonInternal            // everything else
)

// String returns the word in configurations.
func (r Reason) String() string {
	switch r {
	case ReasonBadRequest:
		return "bad-request"
	case ReasonUnauthorized:
		return "unauthorized"
	case ReasonForbidden:
		return "forbidden"
	case ReasonGateway:
		return "gateway"
	case ReasonInternal:
		return "internal"
	}

	return "none"
}

// StatusReader reports, without changing them, which rows no longer need delivery.
type StatusReader interface {
	// ReadSettled reports for each row, by position, whether a claim would return
	// AlreadySettled or Gone. It reports false if unknown.
	ReadSettled(ctx context.Context, rows []ClaimRow) ([]bool, error)
}

// UntriedReader reports, without changing them, which rows were not tried.
type UntriedReader interface {
	// ReadUntried reports for each row, by position, whether its table shows that it is to be
	// delivered and has no retry. It reports false if unknown, for the repetition of a row, and for tables
	// whose claims write nothing. It shares the session of Claim, and leaves no transaction open.
	ReadUntried(ctx context.Context, rows []ClaimRow) ([]bool, error)
}

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
