package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
)

// Format of a symmetric secret (Standard Webhooks 1.0.0, "Signature scheme").
const (
	secretPrefix = "whsec_"
	minSecret    = 24 // bytes
	maxSecret    = 64
)

// parseSecret returns the key of a secret. Errors do not show it.
func parseSecret(s string) ([]byte, error) {
	text, ok := strings.CutPrefix(s, secretPrefix)
	switch {
	case s == "":
		return nil, errors.New("is empty")
	case !ascii.Visible(s):
		return nil, errors.New("contains a space, a line break or a character outside ASCII; check for a trailing newline")
	case !ok:
		return nil, errors.New("does not start with " + secretPrefix)
	}

	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("is not base64 with padding after %s", secretPrefix)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("decodes to %d bytes, must be %d to %d; "+
			"`openssl rand -base64 32` makes 32", len(key), minSecret, maxSecret)
	}
	return key, nil
}

// sign returns the value of webhook-signature: one signature per key, in their order.
func sign(keys [][]byte, id, timestamp string, body []byte) string {
	var b strings.Builder
	for i, key := range keys {
		if i > 0 {
			b.WriteByte(' ')
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		b.WriteString("v1,")
		b.WriteString(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return b.String()
}
