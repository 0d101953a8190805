package config

import (
	"cmp"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/layouts"
)

// layoutCustom is the layout with configured columns.
const layoutCustom = store.CustomLayout

// The kinds of state.
const (
	stateWords      = "words"
	stateNumbers    = "numbers"
	stateBoolean    = "boolean"
	stateTimestamps = "timestamps"
	stateNone       = "none"
)

// Outbox is one entry of outboxes.
type Outbox struct {
	Name   string `yaml:"name" doc:"The outbox's name in messages and metrics. Default: the table, or the prefix, as written. Set one before a table is renamed."`
	Table  string `yaml:"table" doc:"Required without message-prefix. The table, [schema.]table, in its exact spelling."`
	Prefix string `yaml:"message-prefix" doc:"PostgreSQL, in place of table: the rows are the transactional messages with this prefix, SELECT pg_logical_emit_message(true, 'orders', '{…}'). Needs layout: custom and state: none. columns then names members of the JSON object that is the content, with dots between those of a path, for example order.id; without columns.payload the whole content is the payload, and without columns.id the LSN of the message is the id. See [postgres.md](postgres.md#messages-without-a-table)."`
	Layout string `yaml:"layout" doc:"Required. The columns and status values of the table: the name of a [layout](#layouts), or custom: as configured by the keys below." enum:"layouts"`
	Kind   string `yaml:"kind" doc:"The kind of the rows, if no column holds it: EVENT, DISPATCH_JOB or AUDIT_LOG for a flowcatalyst sink, any word for other sinks."`
	Sink   string `yaml:"sink" doc:"Required without routes. The name of the sink that receives the rows."`

	Routes    []Route `yaml:"routes" doc:"In place of sink: the destinations of the rows, at most 31. Each has an order, retries, FAILED rows and a progress of its own; see [routes.md](routes.md)."`
	FanOut    string  `yaml:"fan-out" doc:"With routes. all: a row takes each route that matches it. first: it takes the first of them. Default: all." enum:"all,first"`
	Complete  string  `yaml:"complete" doc:"With routes. all-required: a row is COMPLETED once each of its required routes has delivered it; if one failed it is FAILED, once all have ended. any-required: it is COMPLETED with the first required route that delivers it, and FAILED once all of them failed. Default: all-required." enum:"all-required,any-required"`
	Unmatched string  `yaml:"unmatched" doc:"With routes, for a row that none of them matches. fail: it is FAILED. complete: it is COMPLETED without a delivery. hold: it waits, with the later such rows of its group, for a restart or a reload with a route that matches it. Default: fail." enum:"fail,complete,hold"`

	Retention       time.Duration `yaml:"retention" doc:"How long to keep a delivered row, for example 7d or 36h. It is deleted within an hour after that; FAILED rows stay. 0s: forever."`
	Archive         string        `yaml:"archive" doc:"The table, [schema.]table, of the same database that receives the rows that retention deletes, in the same transaction. It has the columns of the outbox table."`
	DeadLetterTable string        `yaml:"dead-letter-table" doc:"The table, [schema.]table, of the same database that FAILED rows move into, in one transaction. It has the columns of the outbox table. A row in it is no dead letter any more: insert it into the outbox to send it again. Not with on-failed: block, with routes, nor for a table whose rows keep no state."`

	Columns         Columns       `yaml:"columns" doc:"The table's columns, in their exact spelling. Beside a named layout: only those that differ from it, for example an attribute that it lacks."`
	State           string        `yaml:"state" doc:"Required. How the table stores the state of a row: a word, a number or true (delivered) in columns.status, or nullable times in columns.delivered and columns.failed. none: the table keeps no state; a row is what the log says, and delivered rows are left as they are, or deleted with delete-delivered." enum:"words,numbers,boolean,timestamps,none" only:"layout=custom"`
	Words           Words         `yaml:"words" doc:"The values of columns.status." only:"layout=custom state=words"`
	Numbers         Numbers       `yaml:"numbers" doc:"The values of columns.status." only:"layout=custom state=numbers"`
	FailedNumbers   FailedNumbers `yaml:"failed-numbers" doc:"The values of columns.status for rows FAILED for a known reason. Default: numbers.failed." only:"layout=custom state=numbers"`
	GroupPath       string        `yaml:"group-path" doc:"The path of the message group in the JSON of columns.group, for example customer.id. Empty: the column is the group." only:"layout=custom"`
	OrderBy         []string      `yaml:"order-by" doc:"The order of rows read from the table instead of the log, as column names. Ties are ordered by insertion, if the database knows it, and then by id. Add the id column if ids ascend. Default: those of the layout."`
	DeleteDelivered bool          `yaml:"delete-delivered" doc:"Delete delivered rows instead of marking them." only:"layout=custom"`
	TextTimes       bool          `yaml:"text-times" doc:"MongoDB: times are RFC 3339 text, not dates." only:"layout=custom"`

	Record map[string]string `yaml:"record" doc:"Columns for the answer of the destination to the delivery, in the statement that writes the state: {topic: kafka_topic, partition: kafka_partition, offset: kafka_offset}. Kafka answers with topic, partition and offset, NATS with stream and sequence, Redis with stream and id. See [layouts.md](layouts.md#receipts). Not for a table whose delivered rows are unchanged or deleted."`

	// sinkType is the type of the sink, "" if there is no such sink or the outbox has routes.
	sinkType string
	// kindInLane is set if the sink handles each kind in its own way, as FlowCatalyst does.
	kindInLane bool
}

// Columns is the section columns.
type Columns struct {
	store.Columns `yaml:",inline"`
	Kind          string   `yaml:"kind" doc:"The kind of the row, for example its aggregate's type. Without it, the key kind applies to all rows. Rows of one group keep their order whatever their kinds are, but not with a flowcatalyst sink."`
	Type          string   `yaml:"type" doc:"The type of the event, for example OrderPaid: {type} in the keys of sinks, and the type of CloudEvents."`
	Time          string   `yaml:"time" doc:"When the event happened: the time of CloudEvents. A time, or a number of seconds, milliseconds, microseconds or nanoseconds since 1970."`
	Group         []string `yaml:"group" single:"true" doc:"The message group. Without it, rows have no group. A list of columns is a group for each combination of their values, written with / between them."`
	Lease         string   `yaml:"lease" doc:"The time until which a claim holds the row, in place of columns.claimed. It needs dispatch.takeover: timeout."`
	Attributes    []string `yaml:"attributes" doc:"Further columns to send with the row, by their names: {attr.NAME} in the keys of sinks. headers.* makes each member of the JSON object in column headers an attribute."`
}

// Words is the section words.
type Words struct {
	Pending    string `yaml:"pending" doc:"Required. The row is new or waits for a retry."`
	Processing string `yaml:"processing" doc:"The row is claimed. Without it, claims are not written."`
	Completed  string `yaml:"completed" doc:"Required without delete-delivered. The row was delivered."`
	Failed     string `yaml:"failed" doc:"The row has FAILED. Without it, the relay's own tables keep FAILED rows."`
}

// Numbers is the section numbers.
type Numbers struct {
	Pending    *int `yaml:"pending" doc:"Required. The row is new or waits for a retry."`
	Processing *int `yaml:"processing" doc:"The row is claimed. Without it, claims are not written."`
	Completed  *int `yaml:"completed" doc:"Required without delete-delivered. The row was delivered."`
	Failed     *int `yaml:"failed" doc:"The row has FAILED. Without it, the relay's own tables keep FAILED rows."`
}

// FailedNumbers is the section failed-numbers.
type FailedNumbers struct {
	BadRequest   *int `yaml:"bad-request" doc:"The receiver responded 400 or another 4xx."`
	Unauthorized *int `yaml:"unauthorized" doc:"The receiver responded 401."`
	Forbidden    *int `yaml:"forbidden" doc:"The receiver responded 403."`
	Gateway      *int `yaml:"gateway" doc:"The receiver responded 502, 503 or 504, or did not respond."`
	Internal     *int `yaml:"internal" doc:"Everything else."`
}

// layoutNames returns the values of the key layout, of all presets that include accepts.
func layoutNames(include func(*layouts.Preset) bool) []string {
	var names []string
	for _, p := range layouts.All() {
		if include(&p) {
			names = append(names, p.Name)
		}
	}
	return append(names, layoutCustom)
}

// storeLayout returns the layout of the outbox, for MongoDB documents or for tables. An unknown
// name stands for some layout; the decoder has reported it.
func (o *Outbox) storeLayout(documents bool) store.Layout {
	if o.Layout == layoutCustom {
		l := o.customLayout()
		l.Record = o.recordColumns()
		return l
	}
	p, _ := layouts.Named(o.Layout)
	l := cmp.Or(p.Layout(documents), p.Layout(!documents))
	if l == nil {
		l = &store.Layout{Name: o.Layout}
	}
	o.changeColumns(l)
	if len(o.OrderBy) > 0 {
		l.OrderBy = o.OrderBy
	}
	l.Record = o.recordColumns()
	return *l
}

// changeColumns changes the columns of a named layout to those that the section columns names.
func (o *Outbox) changeColumns(l *store.Layout) {
	var own store.Layout
	o.setColumns(&own)
	to, from := reflect.ValueOf(&l.Columns).Elem(), reflect.ValueOf(own.Columns)
	for i := range from.NumField() {
		if name := from.Field(i); !name.IsZero() {
			to.Field(i).Set(name)
		}
	}
	if own.Columns.Group != "" {
		l.GroupRest, l.GroupPath = own.GroupRest, nil
	}
	if own.Columns.Claimed != "" {
		l.Lease = own.Lease
	}

	if i := slices.IndexFunc(l.Attributes, isKind); i >= 0 && o.kindInLane && o.Kind == "" {
		l.Columns.Kind = cmp.Or(l.Columns.Kind, l.Attributes[i].Column)
	}
	l.Attributes = slices.DeleteFunc(l.Attributes, func(a store.AttributeColumn) bool {
		return isKind(a) && (l.Columns.Kind != "" || o.Kind != "") ||
			slices.ContainsFunc(own.Attributes, func(b store.AttributeColumn) bool { return b.Name == a.Name && b.Spread == a.Spread })
	})
	l.Attributes = append(own.Attributes, l.Attributes...)
	spread := func(a store.AttributeColumn) bool { return a.Spread }
	last := slices.DeleteFunc(slices.Clone(l.Attributes), func(a store.AttributeColumn) bool { return !a.Spread })
	l.Attributes = append(slices.DeleteFunc(l.Attributes, spread), last...)
}

func isKind(a store.AttributeColumn) bool { return a.Name == store.AttributeKind }

func (o *Outbox) customLayout() store.Layout {
	l := store.Layout{Name: layoutCustom, DeleteDelivered: o.DeleteDelivered, TextTimes: o.TextTimes, OrderBy: o.OrderBy}
	o.setColumns(&l)

	switch o.State {
	case stateWords:
		l.State = store.StateWords
		l.Words = map[store.Status]string{
			store.Pending: o.Words.Pending, store.Processing: o.Words.Processing,
			store.Completed: o.Words.Completed, store.Failed: o.Words.Failed,
		}
		maps.DeleteFunc(l.Words, func(_ store.Status, word string) bool { return word == "" })
	case stateNumbers:
		l.State = store.StateNumbers
		l.Numbers = presentNumbers(map[store.Status]*int{
			store.Pending: o.Numbers.Pending, store.Processing: o.Numbers.Processing,
			store.Completed: o.Numbers.Completed, store.Failed: o.Numbers.Failed,
		})
		f := &o.FailedNumbers
		l.FailedNumbers = presentNumbers(map[store.Reason]*int{
			store.ReasonBadRequest: f.BadRequest, store.ReasonUnauthorized: f.Unauthorized,
			store.ReasonForbidden: f.Forbidden, store.ReasonGateway: f.Gateway, store.ReasonInternal: f.Internal,
		})
	case stateBoolean:
		l.State = store.StateBoolean
	case stateTimestamps:
		l.State = store.StateTimestamps
	case stateNone:
		l.State = store.StateNone
	}

	if o.GroupPath != "" {
		l.GroupPath, _ = store.ParseGroupPath(o.GroupPath) // validated by Load
	}
	return l
}

// setColumns sets the columns of a custom layout.
func (o *Outbox) setColumns(l *store.Layout) {
	c := &o.Columns
	l.Columns = c.Columns
	if len(c.Group) > 0 {
		l.Columns.Group = c.Group[0]
		l.GroupRest = append(l.GroupRest, c.Group[1:]...)
	}
	if c.Lease != "" {
		l.Columns.Claimed, l.Lease = c.Lease, true
	}

	kind := store.AttributeColumn{Column: c.Kind, Name: store.AttributeKind}
	if o.kindInLane {
		l.Columns.Kind, kind.Column = c.Kind, ""
	}
	for _, a := range []store.AttributeColumn{kind, {Column: c.Type, Name: store.AttributeType}, {Column: c.Time, Name: store.AttributeTime}} {
		if a.Column != "" {
			l.Attributes = append(l.Attributes, a)
		}
	}
	var spread []store.AttributeColumn
	for _, name := range c.Attributes {
		if column, ok := strings.CutSuffix(name, spreadSuffix); ok {
			spread = append(spread, store.AttributeColumn{Column: column, Spread: true})
		} else {
			l.Attributes = append(l.Attributes, store.AttributeColumn{Column: name, Name: name})
		}
	}
	l.Attributes = append(l.Attributes, spread...)
}

// spreadSuffix follows the name of a column whose JSON members are attributes.
const spreadSuffix = ".*"

// presentNumbers returns the configured numbers.
func presentNumbers[K comparable](numbers map[K]*int) map[K]int {
	have := map[K]int{}
	for key, n := range numbers {
		if n != nil {
			have[key] = *n
		}
	}
	return have
}

// checkLayout checks the keys of a custom layout.
func (k *checker) checkLayout(path string, o *Outbox, documents, timed bool) {
	l := o.storeLayout(documents)
	if o.Prefix != "" {
		k.checkMessages(path, o)
		l = store.MessageLayout(l)
	}
	k.checkDocumentKeys(path, o, documents)
	k.checkClaimTime(path, o, &l, timed)
	k.checkRecord(path+".record", o)
	if o.Layout != layoutCustom && len(o.OrderBy) == 0 && len(o.Record) == 0 && reflect.ValueOf(o.Columns).IsZero() {
		return
	}
	if o.GroupPath != "" && k.hasNoProblem(path+".group-path") {
		if _, err := store.ParseGroupPath(o.GroupPath); err != nil {
			k.fail(path+".group-path", "%s", err)
		}
	}

	for _, n := range l.NamedColumns() {
		switch p := path + "." + n.Key; {
		case !k.hasNoProblem(p):
		case documents && badField(n.Column):
			k.fail(p, "is %q, must be the field's name in its exact spelling, with dots between those of a path, and none of them begins with $", n.Column)
		case !documents && badIdentifier(n.Column):
			k.fail(p, "is %q, must be the column's name in its exact spelling, without quotes, 63 bytes at most", n.Column)
		}
	}

	if o.Layout == layoutCustom {
		k.checkState(path, o)
	}
	k.failFields(path, l.Validate(), func(key string) string { return key })
}

// checkMessages refuses a layout of a table for messages.
func (k *checker) checkMessages(path string, o *Outbox) {
	switch {
	case o.Layout != layoutCustom && k.hasNoProblem(path+".layout"):
		k.fail(path+".layout", "is %s, a layout of tables; with message-prefix, use layout: custom and state: none", o.Layout)
	case o.Layout == layoutCustom && o.State != stateNone && k.hasNoProblem(path+".state"):
		k.fail(path+".state", "is %q, must be none with message-prefix: no table has the state of a message", o.State)
	case o.DeleteDelivered && k.hasNoProblem(path+".delete-delivered"):
		k.fail(path+".delete-delivered", "does not apply with message-prefix: there is no table to delete from")
	}
}

// checkClaimTime checks that a claim has a time, or an end, where one is needed.
func (k *checker) checkClaimTime(path string, o *Outbox, l *store.Layout, timed bool) {
	claimed, lease := path+".columns.claimed", path+".columns.lease"
	switch {
	case !k.hasNoProblem(claimed) || !k.hasNoProblem(lease):
	case o.Columns.Lease != "" && o.Columns.Claimed != "":
		k.fail(lease, "is the end of a claim in place of its time in columns.claimed; remove one")
	case l.Lease && !timed:
		if o.Columns.Lease == "" {
			lease = path + ".layout"
		}
		k.fail(lease, "needs dispatch.takeover: timeout, which says how long a claim holds a row: it is written into column %s", l.Columns.Claimed)
	case timed && l.State != store.StateNone && l.Columns.Claimed == "":
		k.fail(claimed, "is required with dispatch.takeover: timeout, which needs the time of the claim; name a column, or use takeover: at-once")
	}
}

// checkDocumentKeys refuses layouts and keys that apply only to documents, or only to tables.
func (k *checker) checkDocumentKeys(path string, o *Outbox, documents bool) {
	if p, found := layouts.Named(o.Layout); found && p.Layout(documents) == nil && k.hasNoProblem(path+".layout") {
		what := "tables"
		if documents {
			what = "MongoDB's documents"
		}
		k.fail(path+".layout", "is %s, which is no layout of %s; those are %s", p.Name, what, strings.Join(layoutNames(func(p *layouts.Preset) bool { return p.Layout(documents) != nil }), ", "))
	}
	if documents {
		return
	}
	if o.TextTimes && k.hasNoProblem(path+".text-times") {
		k.fail(path+".text-times", "applies only to MongoDB: the columns of a table have types; remove it")
	}
}

// checkRetention checks how long delivered rows are kept.
func (k *checker) checkRetention(path string, o *Outbox, documents bool) {
	if !k.hasNoProblem(path) {
		return
	}
	if o.Retention < 0 {
		k.requireNonNegative(path, o.Retention)
		return
	}
	box := store.Outbox{Name: o.Name, Layout: o.storeLayout(documents), Retention: o.Retention}
	var setup *store.SetupError
	if err := box.ValidateRetention(); errors.As(err, &setup) {
		k.fail(path, "%s; %s", setup.Problem, setup.Remedy)
	}
}

// checkArchive checks the table that receives rows after their retention.
func (k *checker) checkArchive(path string, o *Outbox, s *Settings) {
	box := store.Outbox{Archive: o.Archive, Retention: o.Retention}
	k.checkMoved(path, o.Archive, s, box.ValidateArchive())
}

// checkDeadLetterTable checks the table that receives FAILED rows.
func (k *checker) checkDeadLetterTable(path string, o *Outbox, s *Settings) {
	box := o.relayOutbox(store.Outbox{FailedArchive: o.DeadLetterTable, Layout: o.storeLayout(s.Source.URL.documents())})
	table := box.StoreOutbox()
	k.checkMoved(path, o.DeadLetterTable, s, table.ValidateFailedArchive())
	if o.DeadLetterTable != "" && s.Sinks[o.Sink].OnFailed == dispatch.Block && k.hasNoProblem(path) {
		k.fail(path, "does not go with on-failed: block of sink %s, because a FAILED row that has moved blocks no group; remove one of them", o.Sink)
	}
}

// checkTransaction checks that the database orders its transactions.
func (k *checker) checkTransaction(path string, o *Outbox, s *Settings) {
	switch url := s.Source.URL; {
	case o.Columns.Transaction == "" || !k.hasNoProblem(path):
	case o.Prefix != "":
		k.fail(path, "does not apply with message-prefix: there is no table to poll")
	case url != "" && !url.Postgres():
		k.fail(path, "applies only to PostgreSQL, which shows the order of its transactions; remove it, and let the relay read the log")
	}
}

// checkMoved checks a table that rows move into, and reports what else is wrong with it.
func (k *checker) checkMoved(path, table string, s *Settings, wrong error) {
	if table == "" || !k.hasNoProblem(path) {
		return
	}
	k.checkTable(path, table, s.Source.URL)
	if i := slices.IndexFunc(s.Outboxes, func(other Outbox) bool { return other.Table == table }); i >= 0 {
		k.fail(path, "is the table of outboxes[%d]; name a table of its own", i)
		return
	}
	var setup *store.SetupError
	if errors.As(wrong, &setup) && k.hasNoProblem(path) {
		k.fail(path, "%s; %s", setup.Problem, setup.Remedy)
	}
}

// checkState refuses keys that do not apply to the kind of state.
func (k *checker) checkState(path string, o *Outbox) {
	if !k.requireValue(path+".state", o.State, "set state: words, numbers, boolean, timestamps or none, as the table stores it") {
		return
	}
	unused := func(key, column, remedy string) {
		if p := path + ".columns." + key; column != "" && k.hasNoProblem(p) {
			k.fail(p, "does not apply: with state: %s, %s", o.State, remedy)
		}
	}

	switch o.State {
	case stateTimestamps:
		unused("status", o.Columns.Status, "columns.delivered and columns.failed are the state")
		return
	case stateNone:
		const nothing = "the relay writes nothing into the table"
		c := &o.Columns
		unused("status", c.Status, nothing)
		unused("retry-count", c.RetryCount, nothing)
		unused("claimed", c.Claimed, nothing)
		unused("settled", c.Settled, nothing)
		unused("error", c.Error, nothing)
		unused("lease", c.Lease, nothing)
		unused("delivered", c.Delivered, nothing)
		unused("failed", c.Failed, nothing)
		return
	}

	unused("failed", o.Columns.Failed, "the time of the settlement is written into columns.settled")
}
