package sqlite

import (
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// ParseURL returns the path in a URL of the form sqlite:///absolute/path.db or
// sqlite:relative.db. The error is a *store.SetupError.
func ParseURL(raw string) (string, error) {
	refuse := func(problem, remedy string) (string, error) {
		return "", &store.SetupError{Problem: "database URL " + problem, Remedy: remedy}
	}
	const forms = "use sqlite:///absolute/path.db or sqlite:relative.db"
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "sqlite" {
		return refuse("is not of the form sqlite:///absolute/path.db or sqlite:relative.db",
			"percent-encode special characters in the path")
	}
	if u.Host != "" || u.User != nil {
		return refuse(fmt.Sprintf("names a host, %q", u.Host), forms)
	}
	if u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return refuse("has parameters, but SQLite supports none", "remove them; write a ? or # of the path as %3F or %23")
	}
	path := u.Path
	if u.Opaque != "" {
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return refuse("has a path that cannot be decoded", "write a % of the path as %25")
		}
	}
	if strings.Contains(path, ":memory:") {
		return refuse("names a database in memory, which no other process can access", forms)
	}
	if path == "" || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0) {
		return refuse("names no file", forms)
	}
	if runtime.GOOS == "windows" && len(path) > 2 && path[0] == '/' && path[2] == ':' {
		path = path[1:] // sqlite:///C:/path.db
	}
	return filepath.FromSlash(path), nil
}
