package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/outboxes"
	"github.com/sluicebox/sluicebox/store/mongo/document"
)

// maxClaimTries bounds how often a call restarts because a document changed in between.
// That happens only without transactions.
const maxClaimTries = 5

// errDocumentChanged says that a document changed between its read and its write.
var errDocumentChanged = errors.New("document changed after it was read")

// retryChanged repeats a write while documents change between its read and its write.
func retryChanged(write func(try int) error) error {
	for try := range maxClaimTries {
		if err := write(try); !errors.Is(err, errDocumentChanged) {
			return err
		}
	}
	return &store.RefusedError{Err: errDocumentChanged}
}

// Claim implements store.Claimer. It claims the rows of all outboxes in one transaction.
// The claim time is truncated to milliseconds. A document that another session changes in
// an open transaction is answered as not yet visible.
func (s *Store) Claim(ctx context.Context, epoch store.Epoch, at time.Time, rows []store.ClaimRow) ([]store.ClaimAnswer, error) {
	if len(rows) == 0 {
		return nil, nil
	}

	parts, err := outboxes.Split(s.outboxes, rows)
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}

	c := &claim{Store: s, epoch: epoch, at: at, rows: rows, answers: make([]store.ClaimAnswer, len(rows))}
	if err := c.run(ctx, parts); err != nil {
		return nil, fmt.Errorf("claim: %w", asRefused(err))
	}

	for _, p := range parts {
		p.CopyDuplicates(rows, c.answers)
	}
	return c.answers, nil
}

// claim is one call of Claim.
type claim struct {
	*Store
	epoch   store.Epoch
	at      time.Time
	rows    []store.ClaimRow
	answers []store.ClaimAnswer
}

// run claims the rows of the given parts. A row whose document is contended is answered as
// not yet visible and delays no other row.
func (c *claim) run(ctx context.Context, parts []*outboxes.Part) error {
	var indexes []int
	for _, p := range parts {
		indexes = append(indexes, p.Indexes...)
	}
	skipped, err := c.contention.isolate(indexes, func(i int) store.Ref { return c.rows[i].Ref }, turnTimeout, func(at []int, wait time.Duration) error {
		some := parts
		if len(at) < len(indexes) {
			some = collectParts(parts, at)
		}
		return c.claimTogether(ctx, some, wait)
	})
	for _, i := range skipped {
		c.answers[i] = store.ClaimAnswer{Result: store.NotYetVisible}
	}
	return err
}

// collectParts restricts the parts of a call to the given indexes. Duplicates stay with the
// first row of their id.
func collectParts(parts []*outboxes.Part, at []int) (some []*outboxes.Part) {
	for _, p := range parts {
		part := *p
		part.Indexes = slices.DeleteFunc(slices.Clone(p.Indexes), func(i int) bool { return !slices.Contains(at, i) })
		if len(part.Indexes) > 0 {
			some = append(some, &part)
		}
	}
	return some
}

// claimTogether claims the rows of parts in one transaction, or without one.
func (c *claim) claimTogether(ctx context.Context, parts []*outboxes.Part, wait time.Duration) error {
	singles := func(on *conn) []singleUpdate { return c.singles(on, parts) }
	write := func(ctx context.Context, on *conn) error {
		for _, p := range parts {
			if err := c.claimOutbox(ctx, on.table(p.Outbox), p); err != nil {
				return err
			}
		}
		return nil
	}
	return retryChanged(func(int) error {
		return c.runJob(ctx, &writeJob{epoch: c.epoch, contentionTimeout: wait, sharesTransaction: wait > 0, isClaim: true, singles: singles, write: write})
	})
}

// claimOutbox claims the rows of one outbox. Open rows whose retry count is as the caller knows it
// are claimed without reading them first, unless their id may exist twice and the match count
// would hide it.
func (c *claim) claimOutbox(ctx context.Context, t *table, p *outboxes.Part) error {
	for _, i := range p.Indexes {
		c.answers[i] = store.ClaimAnswer{Result: store.Gone}
	}
	plain, full := c.partition(t, p)
	if len(plain) > 0 && c.canClaimUnread(t, plain, full) {
		done, err := c.claimUnread(ctx, t, plain)
		if err != nil || done {
			return err
		}
	}

	for k, indexes := range [][]int{plain, full} {
		if err := c.readAndAnswer(ctx, t, p, indexes, k == 1); err != nil {
			return err
		}
	}
	return c.writeClaims(ctx, t, append(plain, full...))
}

// canClaimUnread reports whether rows may be claimed without reading their documents first.
func (c *claim) canClaimUnread(t *table, plain, full []int) bool {
	hasNumbers := slices.ContainsFunc(plain, func(i int) bool { return document.IsNumberText(c.rows[i].ID) })
	return len(full) == 0 && c.takeover == 0 && t.Layout.WritesClaims() && !hasNumbers
}

// singles returns the updates that claim the rows of the given parts, provided their documents
// are open and have the known retry counts; nil if some rows must be read first.
func (c *claim) singles(on *conn, parts []*outboxes.Part) []singleUpdate {
	all := []singleUpdate{}
	for _, p := range parts {
		t := on.table(p.Outbox)
		plain, full := c.partition(t, p)
		if !c.canClaimUnread(t, plain, full) || slices.ContainsFunc(plain, func(i int) bool { return !isSingle(c.rows[i].ID) }) {
			return nil
		}
		for retries, indexes := range c.byRetries(t, plain) {
			all = append(all, singleUpdate{t.collection, t.openWith(idsOf(c.rows, indexes), retries), c.claimUpdate(t), len(indexes)})
		}
		for _, i := range plain {
			c.answers[i] = store.ClaimAnswer{Result: store.Claimed}
		}
	}
	return all
}

// partition returns the rows of an outbox that must be claimed in the collection, split
// into rows without and with a payload read. It answers the other rows itself: the log
// proves that their documents exist.
func (c *claim) partition(t *table, p *outboxes.Part) (plain, full []int) {
	for _, i := range p.Indexes {
		switch {
		case p.WantsPayload(c.rows, i):
			full = append(full, i)
		case t.Layout.LogOnly(), t.Layout.Unclaimed && c.rows[i].Txn != 0:
			c.answers[i] = store.ClaimAnswer{Result: store.Claimed, Unwritten: true}
		default:
			plain = append(plain, i)
		}
	}
	return plain, full
}

// claimUnread claims rows that are open and have the known retry counts. It returns false if
// some of them are not, or have not.
func (c *claim) claimUnread(ctx context.Context, t *table, indexes []int) (bool, error) {
	n := int64(0)
	for some := range slices.Chunk(indexes, maxBatchIDs) {
		var models []mongo.WriteModel
		for retries, of := range c.byRetries(t, some) {
			models = append(models, mongo.NewUpdateManyModel().SetFilter(t.openWith(idsOf(c.rows, of), retries)).SetUpdate(c.claimUpdate(t)))
		}
		bound, cancel := context.WithTimeout(ctx, commandTimeout)
		done, err := t.collection.BulkWrite(bound, models)
		cancel()
		if err != nil {
			return false, err
		}
		n += done.MatchedCount
	}
	if n != int64(len(indexes)) {
		return false, nil
	}
	if unique, err := t.oneDocumentEach(ctx, idsOf(c.rows, indexes)); err != nil || !unique {
		return false, err
	}
	for _, i := range indexes {
		c.answers[i] = store.ClaimAnswer{Result: store.Claimed}
	}
	return true, nil
}

// byRetries groups rows by the retry count that the caller knows. Their documents have none if the
// layout has no field for it.
func (c *claim) byRetries(t *table, indexes []int) map[int][]int {
	groups := map[int][]int{}
	for _, i := range indexes {
		retries := 0
		if t.Layout.Columns.RetryCount != "" {
			retries = c.rows[i].RetryCount
		}
		groups[retries] = append(groups[retries], i)
	}
	return groups
}

// openWith is the filter for open documents with one of the ids and a retry count.
func (t *table) openWith(ids []string, retries int) bson.D {
	return append(t.openOf(ids), t.withRetries(retries)...)
}

// withRetries is the filter for documents with a retry count. A missing count is 0.
func (t *table) withRetries(retries int) bson.D {
	switch name := t.Layout.Columns.RetryCount; {
	case name == "":
		return nil
	case retries == 0:
		return bson.D{{Key: name, Value: bson.D{{Key: "$in", Value: bson.A{nil, int32(0)}}}}}
	default:
		return bson.D{{Key: name, Value: number(retries)}}
	}
}

// claimUpdate is the update that claims a document.
func (c *claim) claimUpdate(t *table) bson.D {
	return set(columns.Claim(&t.Layout), func(a columns.Assignment) any {
		if a.Value == columns.Status {
			return t.status(store.Processing)
		}
		return t.time(columns.ClaimTime(&t.Layout, c.at, c.takeover))
	})
}

// readAndAnswer reads rows and answers each.
func (c *claim) readAndAnswer(ctx context.Context, t *table, p *outboxes.Part, indexes []int, payload bool) error {
	l := &t.Layout.Columns
	fields := append(t.stateFields(), l.RetryCount)
	held := c.takeover != 0 && l.Claimed != "" && t.Layout.State != store.StateNone
	if held {
		fields = append(fields, l.Claimed)
	}

	if payload {
		fields = append(fields, t.contentFields()...)
	}

	projection := project(fields...)
	if held {
		projection = append(projection, bson.E{Key: nowField, Value: "$$NOW"})
	}

	seen := make(map[int]bool, len(indexes))
	return t.eachOf(ctx, idsOf(c.rows, indexes), projection, func(id string, doc bson.Raw) error {
		i, asked := p.FirstIndex[id]
		switch {
		case !asked:
			return nil
		case seen[i]:
			return t.twinError(id)
		}
		seen[i] = true
		return c.answer(t, p, i, doc, payload)
	})
}

// answer answers one row from its document.
func (c *claim) answer(t *table, p *outboxes.Part, i int, doc bson.Raw, payload bool) error {
	a, l := &c.answers[i], &t.Layout
	until := c.heldUntil(t, p, i, doc)
	switch {
	case !t.isOpen(doc):
		*a = store.ClaimAnswer{Result: store.AlreadySettled}
		return nil
	case !until.IsZero():
		*a = store.ClaimAnswer{Result: store.Held, Until: until}
		return nil
	}

	*a = store.ClaimAnswer{Result: store.Claimed, Unwritten: !l.WritesClaims()}
	if l.Columns.RetryCount != "" {
		a.RetryCount = document.Count(document.Lookup(doc, l.Columns.RetryCount))
	}

	if payload {
		if a.Payload, a.Attributes = t.content(doc); a.Payload == nil {
			return t.payloadError(c.rows[i].ID)
		}
	}

	return nil
}

// heldUntil returns when another process's claim of a document ends; zero if none holds it.
// A claim without a time holds nothing, because its end is unknown. The remaining time is
// computed by the server's clock and added to the local one, since the two may differ.
func (c *claim) heldUntil(t *table, p *outboxes.Part, i int, doc bson.Raw) time.Time {
	l := &t.Layout
	wordTells := !l.Lease && (l.State == store.StateWords || l.State == store.StateNumbers)
	if c.takeover == 0 || l.State == store.StateNone || wordTells && t.statusOf(doc) == store.Pending {
		return time.Time{}
	}
	at, now := document.Time(document.Lookup(doc, l.Columns.Claimed)), document.Time(doc.Lookup(nowField))
	remaining := at.Sub(now)
	if !l.Lease {
		remaining += c.takeover
	}
	if at.IsZero() || remaining <= 0 || c.isOwnClaim(t, p, i, at) {
		return time.Time{}
	}
	return time.Now().Add(remaining)
}

// isOwnClaim reports whether the leader itself wrote the time of a claim.
func (c *claim) isOwnClaim(t *table, p *outboxes.Part, i int, at time.Time) bool {
	same := func(i int) bool {
		own := columns.ClaimTime(&t.Layout, c.rows[i].OwnClaimAt, c.takeover)
		return !own.IsZero() && own.UnixMilli() == at.UnixMilli()
	}
	for other, first := range p.Duplicates {
		if first == i && same(other) {
			return true
		}
	}
	return same(i)
}

// writeClaims writes the claims of rows that were read first.
func (c *claim) writeClaims(ctx context.Context, t *table, indexes []int) error {
	claimed := slices.DeleteFunc(indexes, func(i int) bool { return c.answers[i].Result != store.Claimed })
	if len(claimed) == 0 || !t.Layout.WritesClaims() {
		return nil
	}

	n, err := t.update(ctx, idsOf(c.rows, claimed), t.openOf, c.claimUpdate(t))
	if err == nil && n != int64(len(claimed)) {
		return errDocumentChanged
	}
	return err
}
