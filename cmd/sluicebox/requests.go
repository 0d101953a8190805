package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

// requestFlags lead to where wishes for the relay that leads are written: the database, or
// the relay itself.
type requestFlags struct {
	configFlag
	Admin     string `placeholder:"URL" help:"Ask the relay that leads, at this admin address such as http://127.0.0.1:8090. Default: the database is asked."`
	TokenFile string `placeholder:"FILE" help:"With --admin: file with the admin token. Default: admin.token of the configuration."`
}

// Validate is called before Run.
func (f *requestFlags) Validate() error {
	if f.TokenFile != "" && f.Admin == "" {
		return errors.New("--token-file goes with --admin: the database wants no admin token")
	}
	return nil
}

// client returns a client of the relay that is to be asked, nil if it is the database.
func (f *requestFlags) client(p *program) (*admin.Client, error) {
	if f.Admin == "" {
		return nil, nil
	}
	client, _, err := (&relayFlags{configFlag: f.configFlag, Admin: f.Admin, TokenFile: f.TokenFile}).dial(p)
	return client, err
}

// checkpoints returns the named checkpoints. Call closed when done.
func (f *requestFlags) checkpoints(p *program) (list admin.Checkpoints, closed func(), err error) {
	client, err := f.client(p)
	if err != nil {
		return nil, nil, err
	}
	if client != nil {
		return client.Checkpoints(), client.Close, nil
	}
	cfg, err := f.load(p)
	if err != nil {
		return nil, nil, err
	}
	return p.relay.checkpoints(cfg)
}

// replays returns the replays. Call closed when done.
func (f *requestFlags) replays(p *program) (list admin.Replays, closed func(), err error) {
	client, err := f.client(p)
	if err != nil {
		return nil, nil, err
	}
	if client != nil {
		return client.Replays(), client.Close, nil
	}
	cfg, err := f.load(p)
	if err != nil {
		return nil, nil, err
	}
	return p.relay.replays(cfg)
}

// requestFailure is what a wish came to, with its exit code and its way out.
func requestFailure(err error) error {
	var request *admin.RequestError
	remedy := ""
	switch {
	case errors.As(err, &request):
		return usageError(request.Problem, "")
	case errors.Is(err, store.ErrNoSavepoint):
		remedy = "sluicebox checkpoint list shows them"
	case errors.Is(err, store.ErrSavepointExists):
		remedy = "take another name, or delete that one first (sluicebox checkpoint delete)"
	case errors.Is(err, store.ErrNoJob), errors.Is(err, admin.ErrReplayEnded):
		remedy = "sluicebox replay list shows them"
	default:
		return relayFailure(err)
	}
	return &commandError{code: exitFailed, problem: err.Error(), remedy: remedy}
}

// leaderFlags say how long the relay that leads is waited for.
type leaderFlags struct {
	Wait time.Duration `default:"30s" placeholder:"TIME" help:"How long to wait for a relay that leads. Default: ${default}."`
}

// requestPollInterval is how often it is looked whether a wish was granted, and fastRequestPollInterval how often
// in the first while: a relay that leads looks for wishes each second, and many are
// granted at once.
const requestPollInterval, fastRequestPollInterval, fastRequestPollPeriod = time.Second, 200 * time.Millisecond, 2 * time.Second

// errNoLeader says that no relay that leads took a wish in time.
var errNoLeader = errors.New("no leader accepted the request")

// await looks again and again until it is done. It ends with errNoLeader when for so long
// no relay showed that it works on it, and with what keeps it from looking when that lasts
// as long: a database that is away for a moment may come back.
func (f *leaderFlags) await(ctx context.Context, p *program, look func(ctx context.Context) (done, taken bool, err error)) error {
	began := time.Now()
	taken, seen := began, began
	failing := false
	for {
		done, begun, err := look(ctx)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (!isTransient(err) || now.Sub(seen) >= f.Wait):
			return err
		case err != nil && !failing:
			p.note("%s; looking again", oneLine(err.Error()))
		case err == nil && done:
			return nil
		case err == nil && !begun && now.Sub(taken) >= f.Wait:
			return errNoLeader
		}
		if failing = err != nil; !failing {
			seen = now
		}
		if begun || failing {
			taken = now
		}
		pause := requestPollInterval
		if now.Sub(began) < fastRequestPollPeriod {
			pause = fastRequestPollInterval
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// isTransient reports whether what keeps somebody from looking may pass by itself.
func isTransient(err error) bool {
	var setup *store.SetupError
	var own *commandError
	var refused *admin.APIError
	if errors.As(err, &refused) {
		return refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusGatewayTimeout
	}
	return !errors.As(err, &setup) && !errors.As(err, &own)
}

// unfinishedError is the end of a command that waits no longer for what goes on without it.
// goesOn says what does, undo how to end that.
func (f *leaderFlags) unfinishedError(err error, what, goesOn, undo string) error {
	problem := fmt.Sprintf("%s: interrupted; %s", what, goesOn)
	switch {
	case errors.Is(err, errNoLeader):
		problem = fmt.Sprintf("%s: no leader accepted the request within %s; it stays queued", what, f.Wait)
		undo = "sluicebox status says whether the relay leads; " + undo
	case !errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: it can no longer be looked at, and %s: %w", what, goesOn, err)
	}
	return &commandError{code: exitFailed, problem: problem, remedy: undo}
}
