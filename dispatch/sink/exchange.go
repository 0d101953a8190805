package sink

import (
	"context"
	"sync/atomic"
)

// Exchange is what a sink over HTTP and the caller of its Deliver tell each other about a request,
// beside its messages and its result. It is part of the context.
type Exchange struct {
	// Traceparent is the W3C header traceparent of the request, "" for none. A header of the
	// configuration wins.
	Traceparent string

	// Status is the HTTP status of the latest answer, 0 if there was none.
	Status atomic.Int32
}

// exchangeKey is the key of an Exchange in a context.
type exchangeKey struct{}

// WithExchange returns a context with an Exchange.
func WithExchange(ctx context.Context, e *Exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

// ExchangeOf returns the Exchange of a context, or nil.
func ExchangeOf(ctx context.Context) *Exchange {
	e, _ := ctx.Value(exchangeKey{}).(*Exchange)
	return e
}
