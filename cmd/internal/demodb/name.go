// Package demodb serves the commands that open databases without a relay, mostly quickstart and
// bench with databases of their own: it names these databases, opens and closes sessions, and
// frees their slots.
package demodb

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/url"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// connectTimeout bounds the opening of a session.
const connectTimeout = 15 * time.Second

// EndTimeout is the time that closed sessions have to end on the server, before a removal
// kills them or gives up.
const EndTimeout = 10 * time.Second

// NewName returns a name that no other run has: the prefix and 8 hexadecimal digits. It needs
// no quotes.
func NewName(prefix string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// InDatabase returns the URL of another database on the server of a URL. Its error shows no
// password.
func InDatabase(source, name string) (string, error) {
	if config.URL(source).Mongo() {
		return mongostore.InDatabase(source, name), nil
	}
	u, err := url.Parse(source)
	if err != nil {
		return "", errors.New("invalid source URL")
	}
	u.Path, u.RawPath = "/"+name, ""
	return u.String(), nil
}
