package propose

import (
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// squash returns a name without case and separators, so that aggregateId, AGGREGATE_ID and
// "aggregate-id" are one name.
func squash(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, name)
}

// The names by which columns are known, squashed, the most usual first.
const (
	idNames        = "id eventid messageid outboxid recordid uuid guid eventuuid messageuuid msgid seq sequence sequenceno position"
	payloadNames   = "payload payloadjson eventpayload messagepayload body messagebody eventbody data eventdata message content serializedevent event json value document variables"
	groupNames     = "messagegroup messagegroupid groupkey groupid orderingkey partitionkey recordkey messagekey eventkey routinggroup aggregateid aggregateuuid aggregateroot entityid streamid subjectid key"
	businessNames  = "orderid customerid customer accountid account userid tenantid tenant subject correlationid"
	tenantNames    = "tenantid tenant"
	kindNames      = "kind aggregatetype aggregatename entitytype objecttype resourcetype aggregate topic destination channel"
	typeNames      = "eventtype eventname messagetype messagename recordtype type name"
	timeNames      = "occurredat occurredon eventtime happenedat eventat timestamp createdat createdon created creationtime creationdate insertedat publicationdate"
	createdNames   = "createdat createdon created insertedat creationtime creationdate inserttime occurredat occurredon publicationdate timestamp eventtime"
	spreadNames    = "headers header metadata meta context properties attributes"
	attributeNames = "traceparent tracestate traceid spanid tracingspancontext baggage tenantid tenant correlationid causationid conversationid requestid contenttype eventversion schemaversion version source routingkey"

	statusNames    = "status state outboxstatus deliverystatus publishstatus publishingstatus publicationstatus sendstatus sendingstatus eventstatus messagestatus processingstatus processstatus dispatchstatus eventstate messagestate"
	booleanNames   = "sent issent published ispublished processed isprocessed delivered isdelivered dispatched isdispatched done isdone completed iscompleted handled ishandled relayed isrelayed forwarded acknowledged acked"
	deliveredNames = "sentat senton sentdate sentts senttime deliveredat deliveredon deliverytime publishedat publishedon publisheddate processedat processedon processeddate processedtime dispatchedat dispatchedon completedat completedon completiondate relayedat forwardedat emittedat acknowledgedat ackedat handledat sent delivered published processed"
	failedNames    = "failedat failedon failuretime faileddate erroredat deadat deadletteredat abortedat rejectedat givenupat"
	claimedNames   = "claimedat lockedat pickedat pickedupat processingat processingstartedat processingsince startedat reservedat takenat acquiredat"
	leaseNames     = "inprogressuntil lockeduntil lockuntil leaseuntil leaseexpiresat lockexpiresat claimeduntil claimexpiresat reserveduntil"
	settledNames   = "settledat finishedat endedat resolvedat"
	retryNames     = "retrycount retries attempts attemptcount attemptno tries trycount failurecount failures deliveryattempts numattempts numretries retrynumber retryno retry"
	errorNames     = "lasterror errormessage error errortext lasterrormessage failurereason lastfailure errorreason failuremessage errordetails errordetail"
)

// groupPairs returns the pairs of columns that are a group together, squashed.
func groupPairs() [][2]string {
	return [][2]string{
		{"aggregatetype", "aggregateid"}, {"aggregate", "aggregateid"}, {"entitytype", "entityid"}, {"streamtype", "streamid"},
		{"objecttype", "objectid"}, {"resourcetype", "resourceid"}, {"tenantid", "partitionid"}, {"tenantid", "partitionkey"},
		{"tenantid", "partition"}, {"tenantid", "messagegroup"}, {"tenant", "partition"}, {"topic", "messagekey"}, {"topic", "key"},
	}
}

// find returns the first free column that has one of the names and fits.
func (g *guesser) find(names string, fits func(c *store.ColumnInfo) bool) *store.ColumnInfo {
	for name := range strings.FieldsSeq(names) {
		if c := g.named(name, fits); c != nil {
			return c
		}
	}
	return nil
}

// named returns the free column of a squashed name, if it fits.
func (g *guesser) named(name string, fits func(c *store.ColumnInfo) bool) *store.ColumnInfo {
	for i := range g.Table.Columns {
		if c := &g.Table.Columns[i]; squash(c.Name) == name && g.usable(c) && fits(c) {
			return c
		}
	}
	return nil
}

// usable reports whether a column is free and can be named in the configuration.
func (g *guesser) usable(c *store.ColumnInfo) bool { return g.taken[c.Name] == "" && g.valid(c) }

func (g *guesser) valid(c *store.ColumnInfo) bool {
	return config.ValidColumn(c.Name, g.Table.Documents)
}

// use gives a column to a key.
func (g *guesser) use(c *store.ColumnInfo, key string) string {
	g.taken[c.Name] = key
	return c.Name
}

// logged reports whether the log contains a column.
func (g *guesser) logged(c *store.ColumnInfo) bool {
	return c.Expression == "" || g.Table.LogsGenerated
}

// writable reports whether the relay can write a column.
func writable(c *store.ColumnInfo) bool { return c.Expression == "" }

// isText reports whether a column holds texts of any content.
func isText(c *store.ColumnInfo) bool { return c.Text && len(c.Enum) == 0 }

// isWord reports whether a column holds a short text.
func isWord(c *store.ColumnInfo) bool { return c.Text || len(c.Enum) > 0 }

// has reports whether a list of squashed names has the name of a column.
func has(names string, c *store.ColumnInfo) bool {
	return slices.Contains(strings.Fields(names), squash(c.Name))
}

// identifies reports whether the values of a column have exact texts.
func identifies(c *store.ColumnInfo) bool {
	typ := strings.ToLower(c.Type)
	exact := slices.ContainsFunc([]string{"uuid", "numeric", "decimal", "objectid"}, func(part string) bool { return strings.Contains(typ, part) })
	return c.Integer || isText(c) || c.Bytes && !strings.Contains(typ, "blob") || exact
}
