package mongo

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
)

// Tokens of a version 6 server: of a time, and of three of its events.
const (
	tokenTime  = "8267C867A2000000012B0429296E1404"
	tokenFirst = "8267C867A2000000012B042C0100296E5A1004D3284E04D8914467A2160201812E4C4C46645F6964006467C867A2FB1CBCD579F4E4DE0004"
	tokenNext  = "8267C867A2000000012B042C0101296E5A1004D3284E04D8914467A2160201812E4C4C46645F6964006467C867A2FB1CBCD579F4E4DD0004"
)

func TestComparePositions(t *testing.T) {
	for _, c := range []struct {
		a, b store.Position
		want int
	}{
		{"", "", 0},
		{"", "1741186978.1", -1},
		{"1741186978.1", "1741186978.1", 0},
		{"1741186978.9", "1741186978.10", -1},
		{"999999999.9", "1741186978.1", -1},
		{"1741186978.1", "1741186978.1/h/" + tokenTime, -1},
		{"1741186978.1/h/" + tokenTime, "1741186978.1/h/" + tokenFirst, -1},
		{"1741186978.1/h/" + tokenFirst, "1741186978.1/h/" + tokenNext, -1},
		{"1741186978.1/h/" + tokenFirst, "1741186978.1/other/" + tokenFirst, 0},
		{"1741186978.1/h/" + tokenNext, "1741186978.2", -1},
	} {
		if got := comparePositions(c.a, c.b); got != c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := comparePositions(c.b, c.a); got != -c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.b, c.a, got, -c.want)
		}
	}
}

func TestPositionText(t *testing.T) {
	for _, text := range []store.Position{"1741186978.1", "1741186978.1/9ae16a3b2f90404f/" + tokenFirst, "1741186978.1/9ae16a3b2f90404f/" + tokenFirst + "/80ff"} {
		p, err := parsePosition(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := p.format(); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	for _, text := range []store.Position{"16/B374D848", "4711", "1.2.3", "1741186978.x", "1741186978.1/a", "1741186978.1/a/b/c", "1741186978.1/a/b/00/d", "-1.1", "5000000000.1"} {
		if p, err := parsePosition(text); err == nil {
			t.Errorf("%q was taken for the position %s", text, &p)
		}
	}
}

func TestParseToken(t *testing.T) {
	token := func(doc bson.D) bson.Raw {
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	bits := bson.E{Key: "_typeBits", Value: bson.Binary{Data: []byte{0x80}}}
	p, err := parseToken(token(bson.D{{Key: "_data", Value: tokenFirst}, bits}), "h")
	if want := store.Position("1741186978.1/h/" + tokenFirst + "/80"); err != nil || p.format() != want {
		t.Errorf("%s, %v, want %s", &p, err, want)
	}
	for _, bad := range []bson.D{{}, {{Key: "_data", Value: "82"}}, {{Key: "_data", Value: 1}}, {{Key: "_data", Value: "83" + tokenFirst[2:]}}, {{Key: "_data", Value: "82zzzzzzzz00000001"}}} {
		if p, err := parseToken(token(bad), "h"); err == nil {
			t.Errorf("%v was taken for %s", bad, &p)
		}
	}
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct{ at, behind bson.Timestamp }{
		{bson.Timestamp{T: 7, I: 1}, bson.Timestamp{T: 7, I: 2}},
		{bson.Timestamp{T: 7, I: 1<<32 - 1}, bson.Timestamp{T: 8}},
	} {
		p := positionAfter(c.at)
		if p.at != c.behind || p.previousTime() != c.at {
			t.Errorf("behind %v is %v, before that is %v", c.at, p.at, p.previousTime())
		}
	}
}

func TestOrigins(t *testing.T) {
	sv := &server{hello: hello{SetName: "rs0"}, id: "67c867a2fb1cbcd579f4e4de", database: "shop"}
	unseen := &server{hello: hello{SetName: "rs0"}, database: "shop"}
	for _, c := range []struct {
		origin string
		want   bool
	}{
		{sv.origin(), true},
		{unseen.origin(), true},
		{"mongodb/rs0/67c867a2fb1cbcd579f4e4df/shop", false},
		{"mongodb/rs1/-/shop", false},
		{"mongodb/rs0/-/another", false},
		{"another/" + sv.origin(), false},
		{"", false},
	} {
		if got := sv.hasOrigin(c.origin); got != c.want {
			t.Errorf("%s is the origin of %s: %v", c.origin, sv.origin(), got)
		}
	}
	if !unseen.hasOrigin(sv.origin()) {
		t.Error("a server with an unknown id has another origin")
	}
}
