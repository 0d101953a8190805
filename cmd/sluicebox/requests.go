package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
	"unicode"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

// commandError is the failure of a command, with its exit code and remedy.
type commandError struct {
	code            int
	problem, remedy string
}

func (e *commandError) Error() string { return e.problem }

// usageError returns an error for an invalid command line.
func usageError(problem, remedy string) error {
	return &commandError{code: exitUsage, problem: problem, remedy: remedy}
}

// relayFlags locate a running relay.
type relayFlags struct {
	configFlag
	Admin     string `placeholder:"URL" help:"Admin address of the relay, such as http://127.0.0.1:8090. Default: admin.listen of the configuration."`
	TokenFile string `placeholder:"FILE" help:"File with the admin token. Default: admin.token of the configuration."`
}

// dial returns a client of the relay, and the configuration if there is one, because
// --admin works without. It does not connect. Close the client.
func (f *relayFlags) dial(p *program) (*admin.Client, *config.Config, error) {
	return f.dialWith(p, f.chooseOne)
}

// dialProcess is dial, but of several sources none needs to be named. The client is then one of the
// process.
func (f *relayFlags) dialProcess(p *program) (*admin.Client, *config.Config, error) {
	return f.dialWith(p, f.choose)
}

// dialWith is dial with the source that choose returns. With scale, the name of a source is the number of
// a shard, and all shards have one configuration.
func (f *relayFlags) dialWith(p *program, choose func(*config.Config) (*config.Config, error)) (*admin.Client, *config.Config, error) {
	var cfg *config.Config
	var err error
	if f.Admin == "" || f.named(p) != "" {
		if cfg, err = f.read(p); err != nil {
			return nil, nil, err
		}
		if cfg.Settings.Scale == nil {
			cfg, err = choose(cfg)
		} else if f.SourceName != "" {
			_, err = f.shard(cfg)
		}
		if err != nil {
			return nil, nil, err
		}
	} else if cfg, err = config.Load("", p.environ); err != nil {
		cfg = nil // no file was named, and the variables alone are incomplete
	}

	base, token := f.Admin, ""
	if cfg != nil {
		token = string(cfg.Settings.Admin.Token)
	}

	if base == "" {
		base, err = adminAddress(cfg.Settings.Admin.Listen)
		if err != nil {
			return nil, nil, err
		}
	}

	if f.TokenFile != "" {
		if token, err = readToken(f.TokenFile); err != nil {
			return nil, nil, err
		}
	}

	client, err := admin.NewClient(base, token)
	if err != nil {
		return nil, nil, usageError("--admin: "+err.Error(), "see sluicebox --help")
	}
	return client.OfSource(f.SourceName), cfg, nil
}

// adminAddress returns the address at which a relay with this configuration listens.
func adminAddress(listen string) (string, error) {
	if listen == "" {
		return "", &store.SetupError{
			Problem: "admin.listen is empty: the relay of this configuration has no admin endpoints",
			Remedy:  "set admin.listen and restart the relay, or name another relay with --admin",
		}
	}
	base, err := admin.BaseURL(listen)
	if err != nil {
		return "", &store.SetupError{Problem: "admin.listen: " + err.Error(), Remedy: "name the relay's address with --admin"}
	}
	return base, nil
}

const maxTokenSize = 64 << 10

// readToken reads a token without ever showing its content.
func readToken(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return "", &store.SetupError{Problem: fmt.Sprintf("cannot read --token-file %s: %s", path, err)}
	}

	text = bytes.TrimRight(text, "\r\n")
	if len(text) == 0 || len(text) > maxTokenSize || bytes.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r) || r > unicode.MaxASCII
	}) {
		return "", &store.SetupError{Problem: fmt.Sprintf("--token-file %s holds no bearer token", path), Remedy: "it must contain only the token, in one line without blanks"}
	}

	return string(text), nil
}

// relayFailure returns the error of a request to a relay, with its exit code and remedy.
func relayFailure(err error) error {
	var refused *admin.APIError
	var unreachable *admin.UnreachableError
	switch {
	case errors.Is(err, context.Canceled):
		// Only here an interrupt is a failure: other commands end with 0.
		return &commandError{code: exitFailed, problem: "interrupted before the relay responded; the action may still complete"}
	case errors.As(err, &unreachable) && !unreachable.Sent():
		return &commandError{code: exitFailed, problem: err.Error(),
			remedy: "the relay (sluicebox run) must be running, with this address in admin.listen; --admin URL names another"}
	case errors.As(err, &unreachable):
		return &commandError{code: exitFailed, problem: err.Error(), remedy: "the action may have completed; check before you retry"}
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		return &commandError{code: exitConfig, problem: "admin token missing or refused by the relay",
			remedy: "give it with --token-file FILE, or with admin.token in the configuration (-c)"}
	case errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
		return usageError("refused by the relay: "+refused.Text, "")
	}

	return err
}

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
	cfg, err := f.read(p)
	if err != nil {
		return nil, nil, err
	}
	if cfg.Settings.Scale == nil {
		if cfg, err = f.chooseOne(cfg); err != nil {
			return nil, nil, err
		}
		return p.relay.requests(cfg, "")
	}
	if f.SourceName == "" {
		return nil, nil, usageError("with scale, each shard has checkpoints and replays of its own, and none is named",
			fmt.Sprintf("add --source-name N, 0 to %d; each replays the rows of its partition", cfg.Settings.Scale.Partitions-1))
	}
	n, err := f.shard(cfg)
	if err != nil {
		return nil, nil, err
	}
	return p.relay.requests(cfg, store.ShardName(cfg.Settings.Name, n))
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
