package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store"
)

// reading is the method Get or Lock of a transaction.
type reading func(ctx context.Context, kind string, keys ...string) ([][]byte, error)

// get returns a record, nil if there is none.
func get[T any](ctx context.Context, read reading, kind, key string) (*T, error) {
	all, err := getAll[T](ctx, read, kind, []string{key})
	return all[key], err
}

// getAll returns the existing records among keys.
func getAll[T any](ctx context.Context, read reading, kind string, keys []string) (map[string]*T, error) {
	all := map[string]*T{}
	if len(keys) == 0 {
		return all, nil
	}
	bodies, err := read(ctx, kind, keys...)
	if err != nil {
		return nil, err
	}
	for i, body := range bodies {
		if body == nil {
			continue
		}
		v := new(T)
		if err := decode(kind, keys[i], body, v); err != nil {
			return nil, err
		}
		all[keys[i]] = v
	}
	return all, nil
}

// list returns all records of a kind by key.
func list[T any](ctx context.Context, r RecordReader, kind string) (map[string]*T, error) {
	all := map[string]*T{}
	return all, r.List(ctx, kind, "", 0, func(rec Record) error {
		v := new(T)
		all[rec.Key] = v
		return decode(kind, rec.Key, rec.Body, v)
	})
}

func decode(kind, key string, body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("relay record %s %s: %w", kind, key, err)
	}
	return nil
}

// put writes a record.
func put(ctx context.Context, w Writer, kind, key string, v any) error {
	return putAll(ctx, w, kind, map[string]any{key: v})
}

// putAll writes records by key.
func putAll[T any](ctx context.Context, w Writer, kind string, all map[string]T) error {
	if len(all) == 0 {
		return nil
	}
	records := make([]Record, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		body, err := encode(all[key])
		if err != nil {
			return fmt.Errorf("relay record %s %s: %w", kind, key, err)
		}
		records = append(records, Record{key, body})
	}
	return w.Put(ctx, kind, records...)
}

// encode returns v as JSON in ASCII, which every encoding of a database can store.
func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	plain := true
	for _, c := range body {
		plain = plain && c < utf8.RuneSelf
	}
	if plain {
		return body, nil
	}

	var b bytes.Buffer
	for _, r := range string(body) { // outside of a string JSON is ASCII
		switch hi, lo := utf16.EncodeRune(r); {
		case r < utf8.RuneSelf:
			b.WriteByte(byte(r))
		case hi != utf8.RuneError:
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes(), nil
}

// EncodeAttributes returns the attributes of a queued row as JSON in ASCII, nil for none.
func EncodeAttributes(a store.Attributes) []byte {
	if len(a) == 0 {
		return nil
	}
	body, err := encode(a)
	if err != nil {
		panic("ledger: attributes are texts: " + err.Error())
	}
	return body
}

// DecodeAttributes returns the attributes that EncodeAttributes wrote.
func DecodeAttributes(body []byte) (a store.Attributes, err error) {
	if body == nil {
		return nil, nil
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("attributes of a queued row: %w", err)
	}
	return a, nil
}

// text is a string of any bytes. It is a JSON string, or an object with its base64 if it is
// not valid UTF-8 or has a NUL, which the JSON functions of databases do not accept.
type text string

type binary struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) && strings.IndexByte(string(t), 0) < 0 {
		return json.Marshal(string(t))
	}
	return json.Marshal(binary{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(body []byte) error {
	if body[0] != '{' {
		return json.Unmarshal(body, (*string)(t))
	}
	var b binary
	err := json.Unmarshal(body, &b)
	*t = text(b.Base64)
	return err
}

// groupText returns a group as a record stores it, nil for none.
func groupText(g store.Group) *text {
	if !g.Valid {
		return nil
	}
	name := text(g.Name)
	return &name
}

func groupOf(name *text) store.Group {
	if name == nil {
		return store.Group{}
	}
	return store.GroupOf(string(*name))
}

// utc returns a time without its zone; the zero time stays zero.
func utc(at time.Time) time.Time {
	if at.IsZero() {
		return time.Time{}
	}
	return at.UTC()
}

// maxPlainKey is the maximum length of a name that is a key as it is.
const maxPlainKey = 64

// keyOf returns the key of a name: the name itself if it is short and plain, otherwise a
// hash, which no plain name looks like.
func keyOf(name string) string {
	plain := name != "" && len(name) <= maxPlainKey && strings.IndexFunc(name, func(r rune) bool {
		return !strings.ContainsRune("-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", r)
	}) < 0
	if plain {
		return name
	}
	return hashKey(name)
}

// hashKey returns a key of 41 bytes for a list of names.
func hashKey(names ...string) string {
	h := sha256.New()
	for _, name := range names {
		_, _ = fmt.Fprintf(h, "%d:%s", len(name), name) // a hash accepts every byte
	}
	return "~" + hex.EncodeToString(h.Sum(nil)[:20])
}
