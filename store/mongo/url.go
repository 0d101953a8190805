package mongo

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/sluicebox/sluicebox/store"
)

// urlForm is the expected form of a URL, for error texts.
const urlForm = "mongodb://user:password@host:27017/database or mongodb+srv://user:password@name/database"

const (
	// connectTimeout bounds dialling a host.
	connectTimeout = 3 * time.Second
	// heartbeatInterval is how often the driver polls each server's state. A server that
	// steps down reports it at once. A silent server counts as the primary for at most this
	// interval plus connectTimeout. The driver's minimum is 500 ms.
	heartbeatInterval = 2 * time.Second
	// minPoolSize is the smallest accepted maxPoolSize, because a long read must not hold
	// up a ping.
	minPoolSize = 8
	// selectTimeout bounds the search for a primary. An election usually takes a second or
	// two, and calls retry.
	selectTimeout = 3 * time.Second
)

// ParseURL reads a connection string for the relay, as MongoDB's drivers define it
// (mongodb.com/docs/manual/reference/connection-string).
//
//   - The string must name a database.
//   - TLS follows the string: mongodb:// without tls=true means no TLS.
//   - Reads and writes go to the primary, whatever the string says.
//   - The driver does not retry reads; the caller does.
//   - mongodb+srv:// makes a DNS lookup.
//
// Errors are *store.SetupError and contain no password.
func ParseURL(raw, application string) (opts *options.ClientOptions, database string, err error) {
	database, err = databaseOf(raw)
	if err != nil {
		return nil, "", err
	}

	opts = options.Client().ApplyURI(raw)
	if err := opts.Validate(); err != nil {
		return nil, "", refuseURL("cannot be used: "+withoutSecrets(raw, err), "see https://www.mongodb.com/docs/manual/reference/connection-string")
	}

	opts.SetAppName(application).SetReadPreference(readpref.Primary()).SetRetryReads(false)
	if opts.ConnectTimeout == nil {
		opts.SetConnectTimeout(connectTimeout)
	}

	if opts.HeartbeatInterval == nil {
		opts.SetHeartbeatInterval(heartbeatInterval)
	}

	if opts.ServerSelectionTimeout == nil {
		opts.SetServerSelectionTimeout(selectTimeout)
	}

	if n := opts.MaxPoolSize; n != nil && *n != 0 && *n < minPoolSize {
		opts.SetMaxPoolSize(minPoolSize)
	}

	opts.Timeout = nil // each call sets its own
	return opts, database, nil
}

// databaseOf returns the database that a connection string names.
func databaseOf(raw string) (string, error) {
	rest, ok := strings.CutPrefix(raw, "mongodb://")
	if !ok {
		rest, ok = strings.CutPrefix(raw, "mongodb+srv://")
	}

	if !ok {
		return "", refuseURL("is not of the form "+urlForm, "percent-encode special characters in the user name, password and database")
	}

	// An @ after a / or ? belongs to a password that contains such a character.
	rest, query, _ := strings.Cut(rest, "?")
	at := strings.LastIndexByte(rest, '@')
	if slash := strings.IndexByte(rest, '/'); strings.ContainsAny(rest, "#") || slash >= 0 && slash < at || strings.Contains(query, "@") {
		return "", refuseURL("is not of the form "+urlForm, "percent-encode special characters in the user name and password (@ is %40, # is %23, / is %2F, ? is %3F)")
	}

	_, name, _ := strings.Cut(rest[at+1:], "/")
	name, err := url.PathUnescape(name)
	switch {
	case err != nil || strings.ContainsAny(name, "/\\. \"$\x00"):
		return "", refuseURL("names an invalid database", "write "+urlForm)
	case name == "":
		return "", refuseURL("names no database", "write "+urlForm)
	case slices.Contains([]string{"admin", "local", "config"}, name):
		return "", refuseURL("names the database "+name+", which is the server's own", "name the database that holds the outbox; ?authSource=admin says where the user is defined")
	}

	return name, nil
}

func refuseURL(problem, remedy string) error {
	return &store.SetupError{Problem: "database URL " + problem, Remedy: remedy}
}

// withoutSecrets returns the text of an error without the URL's user and password.
func withoutSecrets(raw string, err error) string {
	cause := errors.Unwrap(err)
	if cause == nil {
		cause = err
	}

	message := cause.Error()
	_, rest, _ := strings.Cut(raw, "://")
	rest, _, _ = strings.Cut(rest, "?")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		plain, _ := url.PathUnescape(password)
		for _, secret := range []string{rest[:at], password, plain, user} {
			if secret != "" {
				message = strings.ReplaceAll(message, secret, "…")
			}
		}
	}
	return message
}

// InDatabase returns a connection string, which may name several hosts, with another
// database in its path. authSource stays the original database.
func InDatabase(raw, name string) string {
	scheme, rest, _ := strings.Cut(raw, "://")
	rest, query, _ := strings.Cut(rest, "?")
	hosts, was, _ := strings.Cut(rest, "/")
	if strings.Contains(hosts, "@") && was != "" && !strings.Contains(strings.ToLower(query), "authsource=") {
		query = strings.TrimPrefix(query+"&authSource="+was, "&")
	}
	if query != "" {
		query = "?" + query
	}
	return scheme + "://" + hosts + "/" + name + query
}
