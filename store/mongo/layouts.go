package mongo

import "github.com/sluicebox/sluicebox/store"

// FlowCatalyst is the layout of the two collections of the FlowCatalyst outbox
// processor: words for the status, delivered documents are kept.
func FlowCatalyst() store.Layout {
	l := camel(store.FlowCatalyst())
	l.Columns.Claimed = "processedAt"
	return l
}

// OutboxMessages is the layout of the collection that FlowCatalyst's SDKs write today:
// _id, names in camelCase, dates.
func OutboxMessages() store.Layout {
	l := camel(store.OutboxMessages())
	l.Columns.Kind, l.Columns.Claimed = "type", "updatedAt"
	return l
}

// OutboxMessagesText is the other form of that collection: id, names in snake_case,
// times as texts of RFC 3339.
func OutboxMessagesText() store.Layout {
	l := store.OutboxMessages()
	l.Name += "-text"
	l.TextTimes = true
	return l
}

// camel gives a layout the names that all FlowCatalyst collections with an _id have.
func camel(l store.Layout) store.Layout {
	c := &l.Columns
	c.ID, c.Group, c.RetryCount, c.Error = "_id", "messageGroup", "retryCount", "errorMessage"
	l.OrderBy = []string{"createdAt"}
	return l
}
