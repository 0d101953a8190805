package mongo

import "github.com/sluicebox/sluicebox/store"

// FlowCatalyst is the layout of the two collections of the FlowCatalyst outbox processor.
// The status is a word, and delivered documents are kept.
func FlowCatalyst() store.Layout {
	l := camel(store.FlowCatalyst())
	l.Columns.Claimed = "processedAt"
	return l
}

// OutboxMessages is the layout of the collection that FlowCatalyst's SDKs write today: _id,
// camelCase names, dates.
func OutboxMessages() store.Layout {
	l := camel(store.OutboxMessages())
	l.Columns.Kind, l.Columns.Claimed = "type", "updatedAt"
	return l
}

// OutboxMessagesText is the other layout of that collection: id, snake_case names, times as
// RFC 3339 text.
func OutboxMessagesText() store.Layout {
	l := store.OutboxMessages()
	l.Name += "-text"
	l.TextTimes = true
	return l
}

// camel sets the field names shared by all FlowCatalyst collections with an _id.
func camel(l store.Layout) store.Layout {
	c := &l.Columns
	c.ID, c.Group, c.RetryCount, c.Error = "_id", "messageGroup", "retryCount", "errorMessage"
	l.OrderBy = []string{"createdAt"}
	return l
}
