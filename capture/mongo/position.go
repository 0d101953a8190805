package mongo

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
)

// oplogPosition is a point in a replica set's oplog: just before everything of a time, or
// just after the event of a resume token.
type oplogPosition struct {
	at bson.Timestamp
	// token is the hexadecimal text of a resume token (_data). "" means the time alone.
	token string
	// typeBits completes the token's text (_typeBits); usually empty.
	typeBits string
	// pipeline is the hash of the filter that the token came from.
	pipeline string
}

// format returns the position as text: the time (seconds since 1970 and increment), the
// filter's hash, the token and, if present, its type bits in hexadecimal. For example
// 1795338000.5/3f2a9c01/8267C867A2000000192B…
func (p *oplogPosition) format() store.Position {
	text := strconv.FormatUint(uint64(p.at.T), 10) + "." + strconv.FormatUint(uint64(p.at.I), 10)
	if p.token == "" {
		return store.Position(text)
	}
	text += "/" + p.pipeline + "/" + p.token
	if p.typeBits != "" {
		text += "/" + hex.EncodeToString([]byte(p.typeBits))
	}
	return store.Position(text)
}

// String returns the position as text.
func (p *oplogPosition) String() string { return string(p.format()) }

// previousTime returns the last time that lies entirely below the position, as far as times
// can say.
func (p *oplogPosition) previousTime() bson.Timestamp {
	if p.token != "" || p.at.IsZero() {
		return p.at
	}
	return nth(ordinal(p.at) - 1)
}

// positionAfter returns the position right after everything of a time.
func positionAfter(at bson.Timestamp) oplogPosition { return oplogPosition{at: nth(ordinal(at) + 1)} }

// ordinal returns a time as one number, and nth the time of such a number.
func ordinal(at bson.Timestamp) uint64 { return uint64(at.T)<<32 | uint64(at.I) }

func nth(n uint64) bson.Timestamp { return bson.Timestamp{T: uint32(n >> 32), I: uint32(n)} }

// parsePosition parses a position. "" is before everything.
func parsePosition(p store.Position) (oplogPosition, error) {
	if p == "" {
		return oplogPosition{}, nil
	}

	invalid := func() (oplogPosition, error) {
		return oplogPosition{}, fmt.Errorf("invalid MongoDB position %q, want for example 1795338000.5 or 1795338000.5/3f2a9c01/8267C867A2000000192B", p)
	}

	parts := strings.Split(string(p), "/")
	at, err := parseTime(parts[0])
	if err != nil || len(parts) == 2 || len(parts) > 4 || slices.Contains(parts, "") {
		return invalid()
	}

	pos := oplogPosition{at: at}
	if len(parts) > 2 {
		pos.pipeline, pos.token = parts[1], parts[2]
	}

	if len(parts) > 3 {
		bits, err := hex.DecodeString(parts[3])
		if err != nil {
			return invalid()
		}
		pos.typeBits = string(bits)
	}

	return pos, nil
}

// parseTime parses seconds and an increment.
func parseTime(text string) (bson.Timestamp, error) {
	seconds, increment, _ := strings.Cut(text, ".")
	t, errT := strconv.ParseUint(seconds, 10, 32)
	i, errI := strconv.ParseUint(increment, 10, 32)
	if err := errors.Join(errT, errI); err != nil {
		return bson.Timestamp{}, err
	}
	return bson.Timestamp{T: uint32(t), I: uint32(i)}, nil
}

// compare orders two positions by time, and positions with the same time by their tokens'
// texts. Tokens are designed to sort as their events do
// (https://www.mongodb.com/docs/v4.2/changeStreams/#resume-tokens; DOCS-11616 and
// SERVER-34314 in the server's tracker, the latter for events of one transaction). A
// position without a token comes before all tokens of its time.
func (p *oplogPosition) compare(q *oplogPosition) int {
	return cmp.Or(p.at.Compare(q.at), strings.Compare(p.token, q.token))
}

// comparePositions orders two positions. Unreadable positions do not come from a source, so
// any fixed order will do.
func comparePositions(a, b store.Position) int {
	x, errX := parsePosition(a)
	y, errY := parsePosition(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return x.compare(&y)
}

// The text of a token begins with a type byte, that of a timestamp, followed by the seconds
// and the increment, 8 digits each (CType::kTimestamp in key_string.cpp).
const (
	timestampType = "82"
	timeDigits    = 16
)

// parseToken parses a resume token.
func parseToken(token bson.Raw, pipeline string) (oplogPosition, error) {
	data, ok := token.Lookup("_data").StringValueOK()
	if !ok || len(data) < len(timestampType)+timeDigits || !strings.HasPrefix(data, timestampType) {
		return oplogPosition{}, fmt.Errorf("unsupported resume token %s", token)
	}

	at, err := strconv.ParseUint(data[len(timestampType):][:timeDigits], 16, 64)
	if err != nil {
		return oplogPosition{}, fmt.Errorf("unsupported resume token %s: %w", token, err)
	}

	p := oplogPosition{at: nth(at), token: data, pipeline: pipeline}
	if _, bits, ok := token.Lookup("_typeBits").BinaryOK(); ok {
		p.typeBits = string(bits)
	}
	return p, nil
}

// resumeToken returns the token in the server's form.
func (p *oplogPosition) resumeToken() bson.D {
	token := bson.D{{Key: "_data", Value: p.token}}
	if p.typeBits != "" {
		token = append(token, bson.E{Key: "_typeBits", Value: bson.Binary{Data: []byte(p.typeBits)}})
	}
	return token
}
