package mongo

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
)

// place is a point in a replica set's oplog: just before everything of a time, or
// just behind what a resume token names.
type place struct {
	at bson.Timestamp
	// token is the hexadecimal text of a resume token (_data). "" is the time alone.
	token string
	// bits are what the token's text lacks to be exact (_typeBits), most often nothing.
	bits string
	// pipeline is the hash of the pipeline that the token came from.
	pipeline string
}

// position is the place in text: the time, in seconds since 1970 and the increment,
// the pipeline's hash, the token, and its type bits in hexadecimal where it has some:
// 1795338000.5/3f2a9c01/8267C867A2000000192B…
func (p *place) position() store.Position {
	text := strconv.FormatUint(uint64(p.at.T), 10) + "." + strconv.FormatUint(uint64(p.at.I), 10)
	if p.token == "" {
		return store.Position(text)
	}
	text += "/" + p.pipeline + "/" + p.token
	if p.bits != "" {
		text += "/" + hex.EncodeToString([]byte(p.bits))
	}
	return store.Position(text)
}

// String is the place in text.
func (p *place) String() string { return string(p.position()) }

// before is the time up to which everything is below the place, as far as times tell.
func (p *place) before() bson.Timestamp {
	switch {
	case p.token != "" || p.at.T == 0:
		return p.at
	case p.at.I > 0:
		return bson.Timestamp{T: p.at.T, I: p.at.I - 1}
	}
	return bson.Timestamp{T: p.at.T - 1, I: math.MaxUint32}
}

// behind is the place just behind everything of a time.
func behind(at bson.Timestamp) place {
	if at.I == math.MaxUint32 {
		return place{at: bson.Timestamp{T: at.T + 1}}
	}
	return place{at: bson.Timestamp{T: at.T, I: at.I + 1}}
}

// parsePosition reads a position. "" is before everything.
func parsePosition(p store.Position) (place, error) {
	if p == "" {
		return place{}, nil
	}
	refuse := func() (place, error) {
		return place{}, fmt.Errorf("%q is not a position of MongoDB, such as 1795338000.5 or 1795338000.5/3f2a9c01/8267C867A2000000192B", p)
	}
	parts := strings.Split(string(p), "/")
	at, err := parseTime(parts[0])
	if err != nil || len(parts) == 2 || len(parts) > 4 || slices.Contains(parts, "") {
		return refuse()
	}
	read := place{at: at}
	if len(parts) > 2 {
		read.pipeline, read.token = parts[1], parts[2]
	}
	if len(parts) > 3 {
		bits, err := hex.DecodeString(parts[3])
		if err != nil {
			return refuse()
		}
		read.bits = string(bits)
	}
	return read, nil
}

// parseTime reads seconds and an increment.
func parseTime(text string) (bson.Timestamp, error) {
	seconds, increment, _ := strings.Cut(text, ".")
	t, errT := strconv.ParseUint(seconds, 10, 32)
	i, errI := strconv.ParseUint(increment, 10, 32)
	if err := errors.Join(errT, errI); err != nil {
		return bson.Timestamp{}, err
	}
	return bson.Timestamp{T: uint32(t), I: uint32(i)}, nil
}

// compare orders two places: by their times, and those of one time by the texts of
// their tokens. These are made so that they sort as their events do
// (https://www.mongodb.com/docs/v4.2/changeStreams/#resume-tokens; DOCS-11616 and
// SERVER-34314 in the server's tracker, the latter for events of one transaction). The
// time alone is before all tokens of it.
func (p *place) compare(q *place) int {
	return cmp.Or(p.at.Compare(q.at), strings.Compare(p.token, q.token))
}

// comparePositions orders two positions. One that cannot be read is not a source's:
// any fixed order will do.
func comparePositions(a, b store.Position) int {
	x, errX := parsePosition(a)
	y, errY := parsePosition(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return x.compare(&y)
}

// The text of a token begins with the type of what follows, a timestamp, and then has
// the time's seconds and increment, 8 digits each (CType::kTimestamp in key_string.cpp).
const (
	timestampType = "82"
	timeDigits    = 8
)

// placeOf reads a resume token.
func placeOf(token bson.Raw, pipeline string) (place, error) {
	data, ok := token.Lookup("_data").StringValueOK()
	if !ok || len(data) < len(timestampType)+2*timeDigits || !strings.HasPrefix(data, timestampType) {
		return place{}, fmt.Errorf("the resume token %s has a form that the relay does not know", token)
	}
	digits := data[len(timestampType):]
	t, errT := strconv.ParseUint(digits[:timeDigits], 16, 32)
	i, errI := strconv.ParseUint(digits[timeDigits:2*timeDigits], 16, 32)
	if err := errors.Join(errT, errI); err != nil {
		return place{}, fmt.Errorf("the resume token %s has a form that the relay does not know: %w", token, err)
	}
	p := place{at: bson.Timestamp{T: uint32(t), I: uint32(i)}, token: data, pipeline: pipeline}
	if _, bits, ok := token.Lookup("_typeBits").BinaryOK(); ok {
		p.bits = string(bits)
	}
	return p, nil
}

// resumeToken is the token as the server takes it.
func (p *place) resumeToken() bson.D {
	token := bson.D{{Key: "_data", Value: p.token}}
	if p.bits != "" {
		token = append(token, bson.E{Key: "_typeBits", Value: bson.Binary{Data: []byte(p.bits)}})
	}
	return token
}
