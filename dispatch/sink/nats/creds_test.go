package nats_test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// key is a key with which tokens are signed, or which they are about.
type key struct {
	nkeys.KeyPair
	public, seed string
}

func newKey(t *testing.T, create func() (nkeys.KeyPair, error)) key {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return key{pair, public, string(seed)}
}

// sign returns a token of NATS about a subject.
func (k key) sign(t *testing.T, subject string, claims map[string]any) string {
	t.Helper()
	claims["version"] = 2
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := encode(map[string]string{"typ": "JWT", "alg": "ed25519-nkey"}) + "." +
		encode(map[string]any{"jti": subject, "iat": time.Now().Unix(), "iss": k.public, "sub": subject, "name": subject, "nats": claims})
	signature, err := k.Sign([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// A file of credentials logs in, and a changed one is read when the old one is refused.
func TestCredsFile(t *testing.T) {
	operator, system, account := newKey(t, nkeys.CreateOperator), newKey(t, nkeys.CreateAccount), newKey(t, nkeys.CreateAccount)
	unlimited := map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1,
		"wildcards": true, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
	creds := func(by key) string {
		user := newKey(t, nkeys.CreateUser)
		token := by.sign(t, user.public, map[string]any{"type": "user", "subs": -1, "data": -1, "payload": -1, "pub": map[string]any{}, "sub": map[string]any{}})
		return "-----BEGIN NATS USER JWT-----\n" + token + "\n------END NATS USER JWT------\n\n" +
			"-----BEGIN USER NKEY SEED-----\n" + user.seed + "\n------END USER NKEY SEED------\n"
	}
	b := &broker{tb: t, NATSServer: servers.NATS.Start(t, map[string]string{
		"operator":       operator.sign(t, operator.public, map[string]any{"type": "operator"}),
		"system_account": system.public,
		"resolver":       "MEMORY",
		"resolver_preload": "{" + account.public + ": " + operator.sign(t, account.public, map[string]any{"type": "account", "limits": unlimited}) +
			", " + system.public + ": " + operator.sign(t, system.public, map[string]any{"type": "account"}) + "}",
	})}
	b.login = natsgo.UserCredentials(writeFile(t, creds(account)))
	b.createStream(servers.NATS, nil)
	c := b.config()
	c.CredsFile = writeFile(t, creds(newKey(t, nkeys.CreateAccount)))
	s := newSink(t, c)
	want(t, s, run(0, 0), sink.Misconfigured)
	if err := os.WriteFile(c.CredsFile, []byte(creds(account)), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, s, run(0, 0), sink.Delivered)
	wantStored(t, b, ids(0, 0))
}
