package outbox

import (
	"cmp"
	"context"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/store"
)

// Outbox is an outbox that rows are written to. It is safe for concurrent use.
type Outbox struct {
	of          store.Outbox
	layout      *store.Layout // with the columns that an outbox of messages leaves out
	traceparent func(ctx context.Context) string
	binary      bool
}

// Option changes how rows are written.
type Option func(*Outbox)

// Traceparent sets the function that returns the trace context of ctx in the form of the W3C
// header traceparent, "" for none. It becomes the attribute traceparent of rows that have none,
// if the layout has a place for it. With OpenTelemetry:
//
//	outbox.Traceparent(func(ctx context.Context) string {
//		carrier := propagation.MapCarrier{}
//		propagation.TraceContext{}.Inject(ctx, carrier)
//		return carrier["traceparent"]
//	})
func Traceparent(of func(ctx context.Context) string) Option {
	return func(o *Outbox) { o.traceparent = of }
}

// BinaryPayload says that the payload's column is binary. Only [database/sql] with PostgreSQL
// needs it, because some of its drivers write a []byte into a text as hexadecimal digits.
func BinaryPayload() Option { return func(o *Outbox) { o.binary = true } }

// New returns an outbox to write to. The name may be empty. The error lists everything that is
// missing or contradictory in the layout.
//
// The driver's package writes the rows: store/outbox/postgres, mysql, sqlite or mongo.
func New(of store.Outbox, options ...Option) (*Outbox, error) {
	of.Name = cmp.Or(of.Name, of.Table, of.MessagePrefix)
	if err := store.ValidateOutboxes([]store.Outbox{of}, 0); err != nil {
		return nil, err
	}
	o := &Outbox{of: of, layout: &of.Layout}
	if of.MessagePrefix != "" {
		layout := store.MessageLayout(of.Layout)
		o.layout = &layout
	}
	for i := range o.layout.Attributes {
		if a := &o.layout.Attributes[i]; strings.HasPrefix(a.Column, o.layout.Columns.Payload+".") {
			return nil, fmt.Errorf("outbox %q: layout %s: %s: field %s lies inside the payload, which is written as a text; let the service write such documents itself",
				of.Name, o.layout.Name, a.Key(), a.Column)
		}
	}
	for _, option := range options {
		option(o)
	}
	return o, nil
}

// Outbox returns the outbox with its layout.
func (o *Outbox) Outbox() *store.Outbox { return &o.of }

// traceparentName is the attribute with the trace context, as in CloudEvents.
const traceparentName = "traceparent"

// Complete sets the id, the time and the trace context that a row lacks.
func (o *Outbox) Complete(ctx context.Context, row *Row) (err error) {
	if row.ID == "" && o.makesID() {
		if row.ID, err = o.newID(); err != nil {
			return err
		}
	}
	if row.Created.IsZero() {
		row.Created = time.Now()
	}
	if o.traceparent != nil && o.layout.HasAttribute(traceparentName) {
		_, given := row.Attributes.Get(traceparentName)
		if value := o.traceparent(ctx); value != "" && !given {
			row.Attributes = append(slices.Clip(row.Attributes), store.Attribute{Name: traceparentName, Value: value})
		}
	}
	return nil
}

// makesID reports whether a row without an id gets one before it is written.
func (o *Outbox) makesID() bool {
	return o.layout.NewID != store.IDDatabase && o.layout.Columns.ID != store.MessageLSN && !o.wholeContent()
}

// wholeContent reports whether the payload is the whole content of a message.
func (o *Outbox) wholeContent() bool { return o.layout.Columns.Payload == store.MessageContent }

// crockford are the digits of a base 32 in which texts ascend as their numbers do.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// newID returns an id that ascends with time, also among the ids that this process makes at once.
func (o *Outbox) newID() (string, error) {
	if o.layout.NewID == store.IDGiven {
		return "", &RowError{
			Key: "id", Problem: "is missing, and column " + o.layout.Columns.ID + " is too short for a UUID", Remedy: "set Row.ID",
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	if o.layout.NewID == store.IDBase32 {
		// Behind 32 zero bits the number ends with a digit. A ULID leaves out the first six.
		return base32.NewEncoding(crockford).EncodeToString(append(make([]byte, 4), id[:]...))[6:], nil
	}
	return id.String(), nil
}
