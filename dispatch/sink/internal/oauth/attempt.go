package oauth

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/store"
)

// Attempt makes a request with the current token. After a 401 it renews the token and
// makes the request once more, if there is a newer one. That sends no row twice,
// because a request answered with 401 was not accepted. A platform that changes its
// keys therefore causes neither an alarm nor a backoff. The second result is final.
//
// The name, for example "POST /path", is for the details. The context bounds both
// requests and the fetch.
func (s *Source) Attempt(ctx context.Context, name string, request func(token string) sink.Result) sink.Result {
	token, err := s.Token(ctx)
	if err != nil {
		return noTokenResult(name, err)
	}

	res := request(token)
	if res.Reason != store.ReasonUnauthorized {
		return res
	}

	fresh, err := s.Renew(ctx, token)
	if err != nil {
		return noTokenResult(name+" answered 401 to the last token", err)
	}
	if fresh == token {
		return res
	}
	return request(fresh)
}

// noTokenResult is the result of a request that was not sent because there is no
// token.
func noTokenResult(name string, err error) sink.Result {
	failed := (*Error)(nil)
	if !errors.As(err, &failed) {
		return httpsink.NoAnswerResult(name, fmt.Errorf("wait for token canceled: %w", err), nil)
	}

	reason := store.ReasonGateway
	if failed.Class == sink.Misconfigured {
		reason = store.ReasonUnauthorized
	}
	return sink.Result{
		Outcome:    sink.Outcome{Class: failed.Class, Reason: reason, Detail: redact.OneLine(name + ": " + failed.Error())},
		RetryAfter: failed.RetryAfter,
	}
}
