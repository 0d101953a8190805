package propose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// addID adds the id.
func (g *guesser) addID() error {
	t := g.Table
	for i, name := range t.Keys {
		c, found := t.Column(name)
		if !found || !g.usable(c) || !t.Documents && (!identifies(c) || i > 0 && !c.NotNull) {
			continue
		}
		why := "it has a unique index"
		if i == 0 {
			why = "the primary key"
		}
		if t.Partitioned {
			why = "a unique index of the partitioned table begins with it"
		}
		if rest := slices.DeleteFunc(slices.Clone(t.Keys), func(k string) bool { return k == name }); len(rest) > 0 && !t.Partitioned {
			why += "; " + strings.Join(rest, ", ") + " would do too, if receivers know rows by it"
		}
		g.columns.add("id", g.use(c, "id"), because(sure, "%s", why))
		return nil
	}
	c := g.find(idNames, identifies)
	if c == nil {
		return &store.SetupError{
			Problem: fmt.Sprintf("%s has no column that could be the id of a row: none has a unique index of its own", t.Name),
			Remedy:  "-- add such a column, then\n" + t.KeyStatement("id"),
		}
	}
	g.columns.add("id", g.use(c, "id"), because(decide, "no unique index finds a row by it, and the relay needs one: %s", t.KeyStatement(c.Name)))
	return nil
}

// addPayload adds the payload: by its name, else by its type.
func (g *guesser) addPayload() error {
	fits := func(c *store.ColumnInfo) bool {
		return g.logged(c) && (c.Object || c.Bytes || isText(c) && (c.Length == 0 || c.Length >= 100))
	}
	if c := g.find(payloadNames, fits); c != nil {
		g.columns.add("payload", g.use(c, "payload"), because(sure, "by its name and its type, %s", c.Type))
		return nil
	}
	var found []*store.ColumnInfo
	for _, is := range []func(c *store.ColumnInfo) bool{
		func(c *store.ColumnInfo) bool { return c.Object },
		func(c *store.ColumnInfo) bool { return c.Bytes },
		func(c *store.ColumnInfo) bool { return isText(c) && (c.Length == 0 || c.Length >= 1000) },
	} {
		for i := range g.Table.Columns {
			if c := &g.Table.Columns[i]; g.usable(c) && fits(c) && is(c) && !has(spreadNames+" "+errorNames+" "+typeNames+" "+kindNames+" "+groupNames+" "+attributeNames, c) {
				found = append(found, c)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	if len(found) == 0 {
		return &store.SetupError{
			Problem: g.Table.Name + " has no column that could be the payload: none of JSON, bytes or long texts is left",
			Remedy:  "write the outbox yourself, with layout: custom, and name the column in columns.payload",
		}
	}
	n := because(likely, "the only column of type %s", found[0].Type)
	if len(found) > 1 {
		n = because(decide, "of type %s, like %s", found[0].Type, strings.Join(columnNames(found[1:]), ", "))
	}
	g.columns.add("payload", g.use(found[0], "payload"), n)
	return nil
}

func columnNames(list []*store.ColumnInfo) []string {
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.Name
	}
	return names
}

// addGroup adds the message group. It returns group-path if the group is in a JSON column.
func (g *guesser) addGroup() (keys section) {
	fits := func(c *store.ColumnInfo) bool { return g.logged(c) && !c.Object && !c.Boolean || c.Integer }
	for _, pair := range groupPairs() {
		first, second := g.named(pair[0], fits), g.named(pair[1], fits)
		if first != nil && second != nil {
			g.columns.add("group", []string{first.Name, second.Name}, because(likely, "rows of one %s and %s stay in order", first.Name, second.Name))
			return nil
		}
	}
	if c := g.find(groupNames, fits); c != nil {
		n := because(likely, "rows of one %s stay in order", c.Name)
		if tenant := g.find(tenantNames, fits); tenant != nil {
			n = because(decide, "whose rows have to stay in order; or %s, or [%[1]s, %s] for each combination", tenant.Name, c.Name)
		}
		g.columns.add("group", c.Name, n)
		return nil
	}
	if keys := g.generatedGroup(); keys != nil {
		return keys
	}

	var found []*store.ColumnInfo
	for name := range strings.FieldsSeq(businessNames) {
		if c := g.named(name, fits); c != nil {
			found = append(found, c)
		}
	}
	switch {
	case len(found) == 1:
		g.columns.add("group", found[0].Name, because(likely, "rows of one %s stay in order", found[0].Name))
	case len(found) > 1:
		g.columns.add("group", found[0].Name, because(decide, "whose rows have to stay in order; or %s, or a list of columns for each combination", strings.Join(columnNames(found[1:]), ", ")))
	default:
		g.remarks = append(g.remarks, "No column is a message group, so all rows are sent one after the other. columns.group names one.")
	}
	return nil
}

// jsonPath matches a path into a JSON column, as PostgreSQL prints it.
var (
	jsonPath = regexp.MustCompile(`^\(*"?([\w$]+)"?((?: ->>? '(?:[^']|'')*'::text\)*)+)(?:::[\w ]+\)*)?$`)
	jsonStep = regexp.MustCompile(`->>? '((?:[^']|'')*)'::text`)
)

// generatedGroup proposes the path that a generated column reads, because PostgreSQL's log does
// not contain the column itself.
func (g *guesser) generatedGroup() section {
	c := g.find(groupNames+" "+businessNames, func(c *store.ColumnInfo) bool { return !g.logged(c) })
	if c == nil {
		return nil
	}
	why := fmt.Sprintf("%s is a generated column, which PostgreSQL's log does not contain", c.Name)
	from := jsonPath.FindStringSubmatch(c.Expression)
	if from == nil {
		g.remarks = append(g.remarks, why+": it cannot be the message group. columns.group names another.")
		return nil
	}
	source, found := g.Table.Column(from[1])
	if !found || !source.JSON {
		return nil
	}
	var path []string
	for _, step := range jsonStep.FindAllStringSubmatch(from[2], -1) {
		path = append(path, pathStep(strings.ReplaceAll(step[1], "''", "'")))
	}
	joined := strings.Join(path, ".")
	if _, err := store.ParseGroupPath(joined); err != nil {
		return nil
	}
	g.columns.add("group", source.Name, because(likely, "%s", why))
	return section{{"group-path", joined, because(likely, "the path that %s reads", c.Name)}}
}

// plainStep matches a key that needs no quotes in a path.
var plainStep = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func pathStep(key string) string {
	if plainStep.MatchString(key) {
		return key
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// addKind adds what the rows are about: a column, or one kind for all rows.
func (g *guesser) addKind(o *section) {
	if g.platform() {
		o.add("kind", "EVENT", because(decide, "or DISPATCH_JOB, AUDIT_LOG: the rows' endpoint of FlowCatalyst"))
		return
	}
	fits := func(c *store.ColumnInfo) bool { return g.logged(c) && isWord(c) }
	if c := g.find(kindNames, fits); c != nil {
		g.columns.add("kind", g.use(c, "kind"), because(likely, "what the row is about, by the column's name"))
		return
	}
	o.add("kind", kindOf(g.Table.Table), because(likely, "a word for receivers, from the table's name"))
}

// kindOf returns a kind for the rows of a table, for example order for shop.order_outbox.
func kindOf(table string) string {
	var words []string
	for _, word := range strings.FieldsFunc(strings.ToLower(table), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		for _, general := range []string{"outbox", "events", "event", "messages", "message"} {
			word = strings.TrimSuffix(strings.TrimPrefix(word, general), general)
		}
		if word != "" && !slices.Contains([]string{"tbl", "table", "queue", "t", "s"}, word) {
			words = append(words, word)
		}
	}
	if len(words) == 0 {
		return "event"
	}
	return strings.Join(words, "-")
}

// addDescriptions adds the type, the time and the further attributes.
func (g *guesser) addDescriptions() {
	if c := g.find(typeNames, func(c *store.ColumnInfo) bool { return g.logged(c) && isWord(c) }); c != nil {
		g.columns.add("type", g.use(c, "type"), because(likely, "the type of the event, by the column's name"))
	}
	if c := g.find(timeNames, g.isEventTime); c != nil {
		g.columns.add("time", g.use(c, "time"), because(likely, "when it happened, by the column's name"))
	}
	if list := g.attributes(); len(list) > 0 {
		g.columns.add("attributes", list, because(likely, "sent with the row where the sink names {attr.NAME}"))
	}
}

func (g *guesser) isEventTime(c *store.ColumnInfo) bool {
	return g.logged(c) && (c.Time || c.Integer || isText(c))
}

// attributes returns the columns that go with a row.
func (g *guesser) attributes() (list []string) {
	for i := range g.Table.Columns {
		c := &g.Table.Columns[i]
		switch {
		case !g.usable(c) || !g.logged(c) || c.Bytes:
		case has(spreadNames, c) && (c.Object || isText(c)):
			list = append(list, c.Name+".*")
		case has(attributeNames, c):
			list = append(list, c.Name)
		}
	}
	// A column that is spread comes last.
	slices.SortStableFunc(list, func(a, b string) int { return strings.Count(a, ".*") - strings.Count(b, ".*") })
	return list
}

// addOrder adds the order of rows that are read from the table.
func (g *guesser) addOrder(o *section) {
	created := func(c *store.ColumnInfo) bool { return g.taken[c.Name] == "time" || g.taken[c.Name] == "" }
	for name := range strings.FieldsSeq(createdNames) {
		for i := range g.Table.Columns {
			c := &g.Table.Columns[i]
			if squash(c.Name) == name && created(c) && (c.Time || c.Integer) && g.valid(c) {
				o.add("order-by", []string{c.Name}, because(likely, "the insert time orders rows that are read from the table"))
				return
			}
		}
	}
	if c, found := g.Table.Column(g.Table.Inserted); found && g.valid(c) {
		o.add("order-by", []string{c.Name}, because(sure, "it numbers the rows as they are inserted"))
		return
	}
	if g.Table.Documents || g.Table.Inserted != "" {
		return
	}
	for i := range g.Table.Columns {
		if c := &g.Table.Columns[i]; g.taken[c.Name] == "id" && !c.Integer {
			o.add("order-by", []string{c.Name}, because(decide, "no column says when a row was inserted, and ids of type %s ascend only if the services make them so, for example as UUIDv7", c.Type))
			return
		}
	}
	g.remarks = append(g.remarks, "No column says when a row was inserted: rows that are read from the table, and not from the log, are ordered by their id.")
}
