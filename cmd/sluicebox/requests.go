package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// requestFlags say where requests for the leader are written: to the database, or through
// a relay.
type requestFlags struct {
	configFlag
	Admin     string `placeholder:"URL" help:"Send the request to the leader at this admin address, for example http://127.0.0.1:8090. Default: write it to the database."`
	TokenFile string `placeholder:"FILE" help:"With --admin: file with the admin token. Default: admin.token of the configuration."`
}

// Validate is called before Run.
func (f *requestFlags) Validate() error {
	if f.TokenFile != "" && f.Admin == "" {
		return errors.New("--token-file needs --admin: the database has no admin token")
	}
	return nil
}

// open returns the named checkpoints and replays. Call closed when done.
func (f *requestFlags) open(p *program) (of admin.Requests, closed func(), err error) {
	if f.Admin != "" {
		client, _, err := (&relayFlags{configFlag: f.configFlag, Admin: f.Admin, TokenFile: f.TokenFile}).dial(p)
		if err != nil {
			return nil, nil, err
		}
		return client, client.Close, nil
	}
	cfg, err := f.load(p)
	if err != nil {
		return nil, nil, err
	}
	return p.relay.requests(cfg)
}

// requestFailure returns the error of a request, with its exit code and remedy.
func requestFailure(err error) error {
	var request *sluicebox.RequestError
	remedy := ""
	switch {
	case errors.As(err, &request):
		return usageError(request.Problem, "")
	case errors.Is(err, store.ErrNoSavepoint):
		remedy = "sluicebox checkpoint list shows them"
	case errors.Is(err, store.ErrSavepointExists):
		remedy = "use another name, or delete the checkpoint first (sluicebox checkpoint delete)"
	case errors.Is(err, store.ErrNoJob), errors.Is(err, admin.ErrReplayEnded):
		remedy = "sluicebox replay list shows them"
	default:
		return relayFailure(err)
	}

	return &commandError{code: exitFailed, problem: err.Error(), remedy: remedy}
}

// leaderFlags say how long to wait for a leader.
type leaderFlags struct {
	Wait time.Duration `default:"30s" placeholder:"TIME" help:"How long to wait for a leader. Default: ${default}."`
}

// requestPollInterval is the interval of checks whether a request is done. At first the
// checks come every fastRequestPollInterval, because a leader looks for requests every
// second and carries out many of them at once.
const requestPollInterval, fastRequestPollInterval, fastRequestPollPeriod = time.Second, 200 * time.Millisecond, 2 * time.Second

// errNoLeader is returned if no leader accepts a request in time.
var errNoLeader = errors.New("no leader accepted the request")

// await polls until the request is done. It returns errNoLeader if no leader works on the
// request for the given time. It returns the last error of check if that lasts as long,
// because a short database outage is tolerated.
func (f *leaderFlags) await(ctx context.Context, p *program, check func(ctx context.Context) (done, taken bool, err error)) error {
	began := time.Now()
	taken, seen := began, began
	failing := false
	for {
		done, begun, err := check(ctx)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (!isTransient(err) || now.Sub(seen) >= f.Wait):
			return err
		case err != nil && !failing:
			p.note("%s; retrying", oneLine(err.Error()))
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
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// isTransient reports whether an error may resolve itself.
func isTransient(err error) bool {
	var setup *store.SetupError
	var own *commandError
	var refused *admin.APIError
	if errors.As(err, &refused) {
		return refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusGatewayTimeout
	}
	return !errors.As(err, &setup) && !errors.As(err, &own)
}

// unfinishedError is the error of a command that stops waiting. goesOn says that the work
// continues, undo how to stop it.
func (f *leaderFlags) unfinishedError(err error, what, goesOn, undo string) error {
	problem := fmt.Sprintf("%s: interrupted; %s", what, goesOn)
	switch {
	case errors.Is(err, errNoLeader):
		problem = fmt.Sprintf("%s: no leader accepted the request within %s; it stays queued", what, f.Wait)
		undo = "sluicebox status shows the leader; " + undo
	case !errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: state unknown, but %s: %w", what, goesOn, err)
	}
	return &commandError{code: exitFailed, problem: problem, remedy: undo}
}
