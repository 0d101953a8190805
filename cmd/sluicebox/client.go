package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"unicode"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
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
	var cfg *config.Config
	var err error
	if f.Admin == "" || f.named(p) != "" {
		if cfg, err = f.load(p); err != nil {
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
	return client, cfg, nil
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
