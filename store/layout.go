package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// StateKind is how a table stores the state of its rows.
type StateKind uint8

// Kinds of state.
const (
	// StateWords: a column holds a word per status.
	StateWords StateKind = iota + 1
	// StateNumbers: a column holds a number per status.
	StateNumbers
	// StateTimestamps: nullable timestamps record delivery and, if the table has a column
	// for it, failure.
	StateTimestamps
	// StateBoolean: a column is true once the row was delivered.
	StateBoolean
	// StateNone: the table stores no state. Outcomes write nothing but are still fenced;
	// only the checkpoint records which rows are settled.
	StateNone
)

// Columns names the columns of an outbox table. An empty name means that the table has no
// such column. The tags are the keys of the program's configuration file.
type Columns struct {
	ID string `yaml:"id" doc:"Required without message-prefix. The row's id, with a unique index."`
	// Kind holds the kind of the row's lane. Rows of one group but of two kinds have no order
	// between them, so a column that only describes the row is an attribute instead.
	Kind string `yaml:"-"`
	// Group holds the message group, or the first part of it; see Layout.GroupRest.
	Group      string `yaml:"-"`
	Payload    string `yaml:"payload" doc:"Required without message-prefix. The payload to send."`
	Status     string `yaml:"status" doc:"Required for state words, numbers or boolean: the state of the row."`
	Delivered  string `yaml:"delivered" doc:"Required for state timestamps: the time of delivery, NULL before. Beside a status: the time of delivery only."`
	Failed     string `yaml:"failed" doc:"For state timestamps: the time the row FAILED, NULL before."`
	RetryCount string `yaml:"retry-count" doc:"The number of counted failures of the row."`
	Claimed    string `yaml:"claimed" doc:"The time of the claim, and of the settlement unless columns.settled is set. With state timestamps and without it, nothing marks a row that is being sent."`
	Settled    string `yaml:"settled" doc:"The time of the settlement, if it has its own column."`
	Error      string `yaml:"error" doc:"The error of the last failure."`
	// Transaction holds the transaction that inserted the row; see ReadsByPosition.
	Transaction string `yaml:"transaction" doc:"PostgreSQL, for state: none: the transaction that inserted the row, DEFAULT pg_current_xact_id() of type xid8. With it, source.mode: poll can read the table; see [layouts.md](layouts.md#poll-a-table-of-events)."`
}

// CustomLayout is the name of a layout whose columns the configuration names.
const CustomLayout = "custom"

// Layout maps an outbox table onto an Item.
type Layout struct {
	Name    string
	Columns Columns
	State   StateKind
	// Words are the values of the status column under StateWords. A status without one is not
	// stored; see Stores.
	Words map[Status]string
	// Numbers are the values of the status column under StateNumbers, as Words.
	Numbers map[Status]int
	// FailedNumbers are status values that encode the reason of a failure. A reason without
	// an entry is written as Numbers[Failed]. Each of the values means FAILED.
	FailedNumbers map[Reason]int
	// DeleteDelivered deletes a delivered row instead of marking it.
	DeleteDelivered bool
	// Unclaimed disables claim writes even if the table has columns for them. A row stays
	// PENDING until its outcome; see the package documentation.
	Unclaimed bool
	// TextTimes stores times as RFC 3339 texts in UTC instead of the database's own type.
	// It is for databases whose fields have no declared type.
	TextTimes bool
	// OrderBy are the columns that order rows read without the log. Rows with equal values
	// keep their insertion order, if the database knows it; the id is always the last
	// column.
	OrderBy []string
	// Attributes are the columns that give a row attributes.
	Attributes []AttributeColumn
	// GroupRest are the further columns of a group over several columns; see GroupOfColumns.
	GroupRest []string
	// Lease: Columns.Claimed holds the time until which a claim holds the row, the claim time
	// plus the takeover timeout, and is NULL again behind it.
	Lease bool
	// GroupPath are the keys that lead to the group in the JSON of the group column, which
	// may be the payload column. If it is empty, the column's text is the group.
	GroupPath []string
	// Record are the columns that keep the receipt of a delivery. They are written together
	// with COMPLETED.
	Record []RecordColumn
	// NewID and Filled are for writers of rows; see package outbox. A relay does not use them.
	NewID IDForm
	// Filled are the columns that a writer fills although the row has no value for them, because
	// the table has no default, or stores the row's time in a form of its own.
	Filled []FilledColumn
}

// IDForm is the form of a new row's id.
type IDForm uint8

// Forms of ids.
const (
	// IDUUID is a UUID of version 7, which ascends with time, in 36 characters.
	IDUUID IDForm = iota
	// IDBase32 is the same number in 26 characters of Crockford's base 32, as in a ULID.
	IDBase32
	// IDGiven: the service makes the ids, because the column is too short for the others.
	IDGiven
	// IDDatabase: the database makes the ids, for example by an identity column.
	IDDatabase
)

// FilledColumn is a column that a writer fills.
type FilledColumn struct {
	Column string
	Fill   Fill
}

// Fill is what a writer fills a column with.
type Fill uint8

// Contents of filled columns.
const (
	// FillZero is the number 0.
	FillZero Fill = iota + 1
	// FillSize is the length of the payload in bytes.
	FillSize
	// FillTime is the time of the row.
	FillTime
	// FillKind is the kind of the outbox, for a table with a column that no lane depends on.
	FillKind
	// FillMillis is the time of the row in milliseconds since 1970.
	FillMillis
)

// GroupColumns returns the columns of the group, nil if the layout has none.
func (l *Layout) GroupColumns() []string {
	if l.Columns.Group == "" {
		return nil
	}
	return append([]string{l.Columns.Group}, l.GroupRest...)
}

// WritesClaims reports whether a claim writes to the row.
func (l *Layout) WritesClaims() bool { return !l.Unclaimed && l.Stores(Processing) }

// Stores reports whether the table tells a status from all others. Without Processing, a
// claim writes nothing. Without Failed, a FAILED row stays PENDING in its table, and the
// relay's own tables have its failure. Without Completed, the relay deletes delivered rows,
// or only the checkpoint knows them.
func (l *Layout) Stores(s Status) bool {
	switch l.State {
	case StateWords:
		return l.Words[s] != ""
	case StateNumbers:
		_, ok := l.Numbers[s]
		return ok
	case StateBoolean:
		return s == Pending || s == Completed || s == Processing && l.Columns.Claimed != ""
	case StateTimestamps:
		return s == Pending || s == Completed || s == Processing && l.Columns.Claimed != "" || s == Failed && l.Columns.Failed != ""
	}
	return false
}

// LogOnly reports whether the log alone decides what a row is: the table keeps no state, and
// the relay deletes nothing from it. No claim or outcome looks such a row up.
func (l *Layout) LogOnly() bool { return l.State == StateNone && !l.DeleteDelivered }

// ShowsUnsettled reports whether the table shows which of its rows are to be sent. A table that
// keeps delivered rows without a state does not: only the log tells its new rows.
func (l *Layout) ShowsUnsettled() bool { return l.State != StateNone || l.DeleteDelivered }

// ReadsByPosition reports whether polling can read a table without a state: in the order of
// Columns.Transaction and of the id, behind the position that the checkpoint has.
func (l *Layout) ReadsByPosition() bool { return l.LogOnly() && l.Columns.Transaction != "" }

// FailedNumber returns the number to write for a row that failed for reason r, that of PENDING
// if the layout does not store FAILED.
func (l *Layout) FailedNumber(r Reason) int {
	if !l.Stores(Failed) {
		return l.Numbers[Pending]
	}
	if n, ok := l.FailedNumbers[r]; ok {
		return n
	}
	return l.Numbers[Failed]
}

// SettledNumbers returns every number that means COMPLETED or FAILED, in ascending order.
func (l *Layout) SettledNumbers() []int {
	var set []int
	for _, s := range []Status{Completed, Failed} {
		if n, ok := l.Numbers[s]; ok {
			set = append(set, n)
		}
	}
	for _, n := range l.FailedNumbers {
		set = append(set, n)
	}
	slices.Sort(set)
	return slices.Compact(set)
}

// NamedColumn is a column and the configuration key that names it.
type NamedColumn struct{ Key, Column string }

// NamedColumns returns the columns that the layout names, in a fixed order. A column can
// have several keys.
func (l *Layout) NamedColumns() []NamedColumn {
	c := &l.Columns
	all := []NamedColumn{
		{"columns.id", c.ID}, {"columns.kind", c.Kind}, {"columns.group", c.Group}, {"columns.payload", c.Payload},
		{"columns.status", c.Status}, {"columns.delivered", c.Delivered}, {"columns.failed", c.Failed},
		{"columns.retry-count", c.RetryCount}, {"columns.claimed", c.Claimed}, {"columns.settled", c.Settled},
		{"columns.error", c.Error}, {"columns.transaction", c.Transaction},
	}
	for _, a := range l.Attributes {
		all = append(all, NamedColumn{a.Key(), a.Column})
	}
	for _, name := range l.GroupRest {
		all = append(all, NamedColumn{"columns.group", name})
	}
	for i := range l.Record {
		all = append(all, NamedColumn{l.Record[i].Key(), l.Record[i].Column})
	}
	for _, name := range l.OrderBy {
		all = append(all, NamedColumn{"order-by", name})
	}
	return slices.DeleteFunc(all, func(n NamedColumn) bool { return n.Column == "" })
}

// written returns the columns that the relay writes.
func (l *Layout) written() []string {
	c := &l.Columns
	all := []string{c.Status, c.Delivered, c.Failed, c.RetryCount, c.Claimed, c.Settled, c.Error}
	for i := range l.Record {
		all = append(all, l.Record[i].Column)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// WrittenColumns returns the columns that claims, outcomes and requeues write.
func (l *Layout) WrittenColumns() []string {
	if l.State == StateNone {
		return nil
	}
	return l.written()
}

// ConfigKey returns the configuration key that names a column, the first of several.
func (l *Layout) ConfigKey(column string) string {
	for _, n := range l.NamedColumns() {
		if n.Column == column {
			return n.Key
		}
	}
	return ""
}

// Validate returns everything that is missing or contradictory in the layout, in one error.
// Each of them is a *FieldError.
func (l *Layout) Validate() error {
	var bad FieldErrors
	need := func(column, key string) {
		if column == "" {
			bad.Add("columns."+key, "is not set; name the column")
		}
	}
	need(l.Columns.ID, "id")
	need(l.Columns.Payload, "payload")
	l.validateColumns(&bad)
	if len(l.GroupPath) > 0 && l.Columns.Group == "" {
		bad.Add("group-path", "needs columns.group, the column with the JSON; name the payload's column there to find the group in the payload")
	}
	if len(l.GroupPath) > 0 && len(l.GroupRest) > 0 {
		bad.Add("group-path", "needs a single column in columns.group")
	}
	l.validateAttributes(&bad)
	l.validateRecord(&bad)
	if l.Lease && l.State != StateNone && !l.Stores(Processing) {
		bad.Add("columns.lease", "needs a value for PROCESSING, which marks the row that a claim holds; name it, or remove the lease")
	}

	if l.Columns.Transaction != "" && !l.LogOnly() {
		bad.Add("columns.transaction", "is only for state: none, whose rows are read by position; the state of the rows shows which are to be sent")
	}

	switch l.State {
	case StateWords:
		need(l.Columns.Status, "status")
		validateStates(&bad, l, "words", l.Words, "word")
	case StateNumbers:
		need(l.Columns.Status, "status")
		validateStates(&bad, l, "numbers", l.Numbers, "number")
		l.validateReasons(&bad)
	case StateBoolean:
		need(l.Columns.Status, "status")
	case StateTimestamps:
		need(l.Columns.Delivered, "delivered")
	case StateNone:
	default:
		bad.Add("state", "is required")
	}

	for i, err := range bad {
		bad[i] = fmt.Errorf("layout %s: %w", l.Name, err)
	}
	return bad.Err()
}

// validateColumns rejects a column with two meanings, because a claim would settle the row,
// or a text would overwrite its state. A column that is only read may have several keys.
func (l *Layout) validateColumns(bad *FieldErrors) {
	written := l.written()
	seen := map[string]string{}
	for _, n := range l.NamedColumns() {
		other, taken := seen[n.Column]
		if !taken {
			seen[n.Column] = n.Key
			continue
		}
		both := slices.Contains([]string{other, n.Key}, "columns.id") && slices.Contains([]string{other, n.Key}, "columns.payload")
		if (both || slices.Contains(written, n.Column)) && n.Key != "order-by" {
			bad.Add(n.Key, "is column %q, which %s is too", n.Column, other)
		}
	}
}

// validateAttributes requires a distinct name for each attribute.
func (l *Layout) validateAttributes(bad *FieldErrors) {
	seen := map[string]string{}
	for i := range l.Attributes {
		a := &l.Attributes[i]
		if a.Spread {
			continue
		}
		if other, taken := seen[a.Name]; taken {
			bad.Add(a.Key(), "names column %q, whose attribute %s column %q gives too", a.Column, a.Name, other)
		}
		seen[a.Name] = a.Column
	}
}

// validateStates requires a value for each status that the table must have, and distinct ones.
func validateStates[V comparable](bad *FieldErrors, l *Layout, section string, values map[Status]V, what string) {
	seen := map[V]Status{}
	for s := Pending; s <= Failed; s++ {
		key := section + "." + strings.ToLower(s.String())
		if !l.Stores(s) {
			if s == Pending || s == Completed && !l.DeleteDelivered {
				bad.Add(key, "is not set; %s needs a %s", s, what)
			}
			continue
		}
		v := values[s]
		if other, taken := seen[v]; taken {
			bad.Add(key, "is %s, which stands for %s too", quoted(v), other)
		}
		seen[v] = s
	}
}

// quoted formats a value as in configurations: numbers bare, words in quotes.
func quoted(v any) string {
	if word, ok := v.(string); ok {
		return strconv.Quote(word)
	}
	return fmt.Sprint(v)
}

// validateReasons rejects a failure code that is also the number of another status.
func (l *Layout) validateReasons(bad *FieldErrors) {
	for r := ReasonBadRequest; r <= ReasonInternal; r++ {
		n, ok := l.FailedNumbers[r]
		for s := Pending; ok && s < Failed; s++ {
			if have, given := l.Numbers[s]; given && have == n {
				bad.Add("failed-numbers."+r.String(), "is %d, which stands for %s too", n, s)
			}
		}
	}
}

// FlowCatalyst is the layout of the two tables of the FlowCatalyst outbox processor: the
// status is a word, and delivered rows are kept.
func FlowCatalyst() Layout {
	return Layout{
		Name: "flowcatalyst",
		Columns: Columns{
			ID: "id", Group: "message_group", Payload: "payload",
			Status: "status", RetryCount: "retry_count",
			Claimed: "processed_at", Error: "error_message",
		},
		State: StateWords,
		Words: map[Status]string{
			Pending: "PENDING", Processing: "PROCESSING",
			Completed: "COMPLETED", Failed: "FAILED",
		},
		OrderBy: []string{"created_at"},
		NewID:   IDGiven, // 13 characters
	}
}

// OutboxMessages is the layout of the single table that FlowCatalyst's SDKs write today:
// the status is a number, the kind has a column, and delivered rows are deleted.
func OutboxMessages() Layout {
	return Layout{
		Name: "outbox-messages",
		Columns: Columns{
			ID: "id", Kind: "type", Group: "message_group", Payload: "payload",
			Status: "status", RetryCount: "retry_count",
			Claimed: "updated_at", Error: "error_message",
		},
		State:   StateNumbers,
		Numbers: map[Status]int{Pending: 0, Completed: 1, Failed: 3, Processing: 9},
		FailedNumbers: map[Reason]int{
			ReasonBadRequest: 2, ReasonInternal: 3, ReasonUnauthorized: 4,
			ReasonForbidden: 5, ReasonGateway: 6,
		},
		DeleteDelivered: true,
		OrderBy:         []string{"created_at"},
		NewID:           IDBase32,
	}
}
