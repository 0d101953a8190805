package mysql

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/store"
)

// binlogPosition is a point in a server's binlog: the transactions before it, and its
// file and offset.
type binlogPosition struct {
	set mysql.GTIDSet
	coords
}

// coords is a file and offset of the binlog. The zero value is unknown.
type coords struct {
	file string
	at   uint64
	// created is when MySQL created the file, in seconds since 1970: the time of its
	// FORMAT_DESCRIPTION event. 0 is unknown.
	created uint32
}

// format returns the position as text: the GTID set as the server writes it, the
// coordinates, from which the length of the log is measured, and the file's creation
// time, e.g. 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5@binlog.000003:4711+1795338000.
func (p *binlogPosition) format() store.Position {
	text := p.set.String() + "@" + p.file + ":" + strconv.FormatUint(p.at, 10)
	if p.created != 0 {
		text += "+" + strconv.FormatUint(uint64(p.created), 10)
	}
	return store.Position(text)
}

// parsePosition parses a position, with or without coordinates.
func parsePosition(p store.Position) (binlogPosition, error) {
	text, at, located := strings.Cut(string(p), "@")
	set, err := parseSet(text)
	if err == nil && located {
		var c coords
		if c, err = parseCoords(at); err == nil {
			return binlogPosition{set: set, coords: c}, nil
		}
	}
	if err != nil || p == "" {
		return binlogPosition{}, fmt.Errorf("invalid MySQL or MariaDB position %q, want for example 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5@binlog.000003:4711 or 0-1-270@binlog.000003:4711", p)
	}
	return binlogPosition{set: set}, nil
}

func parseCoords(text string) (coords, error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return coords{}, fmt.Errorf("invalid binlog coordinates %q", text)
	}
	offset, since, dated := strings.Cut(text[i+1:], "+")
	at, err := strconv.ParseUint(offset, 10, 64)
	if err != nil || !dated {
		return coords{file: text[:i], at: at}, err
	}
	created, err := strconv.ParseUint(since, 10, 32)
	return coords{file: text[:i], at: at, created: uint32(created)}, err
}

// comparePositions orders two positions. The positions of one source are nested: each
// contains the previous one and more.
func comparePositions(a, b store.Position) int {
	if a == "" || b == "" {
		return cmp.Compare(len(a), len(b)) // "" is before everything
	}
	x, errX := parsePosition(a)
	y, errY := parsePosition(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}

	switch within, covers := contains(y.set, x.set), contains(x.set, y.set); {
	case within && covers:
		return 0
	case within:
		return -1
	case covers:
		return 1
	}

	return cmp.Compare(a, b) // positions of two servers: any fixed order will do
}

// gtid identifies a transaction, in either flavour.
type gtid struct {
	server uuid.UUID // MySQL
	tag    mysql.Tag
	number int64
	maria  mysql.MariadbGTID
}

// contains reports whether a set includes another. An empty set may be of either flavour.
func contains(set, other mysql.GTIDSet) bool { return other.IsEmpty() || set.Contain(other) }

// addGTID adds a transaction to a set of its flavour.
func addGTID(set mysql.GTIDSet, g *gtid) {
	switch set := set.(type) {
	case *mysql.MysqlGTIDSet:
		set.AddGTIDWithTag(g.server, g.tag, g.number)
	case *mysql.MariadbGTIDSet: // the last transaction of each domain
		last := g.maria
		set.Sets[last.DomainID] = &last
	}
}

// parseSet parses a GTID set of either flavour. Only MySQL's format has colons.
func parseSet(text string) (mysql.GTIDSet, error) {
	if text == "" || strings.Contains(text, ":") {
		return mysql.ParseMysqlGTIDSet(text)
	}
	return mysql.ParseMariadbGTIDSet(text)
}

// parseGTIDSet parses a set of a flavour.
func (f flavour) parseGTIDSet(text string) (mysql.GTIDSet, error) {
	if f == mariaDB {
		return mysql.ParseMariadbGTIDSet(text)
	}
	return mysql.ParseMysqlGTIDSet(text)
}

// emptySet returns the empty set of a flavour.
func emptySet(f flavour) mysql.GTIDSet {
	if f == mariaDB {
		return &mysql.MariadbGTIDSet{Sets: map[uint32]*mysql.MariadbGTID{}}
	}
	none := mysql.NewMysqlGTIDSet()
	return &none
}

// resolveFlavour gives an empty set its flavour, because the text of both is "".
func (p *binlogPosition) resolveFlavour(f flavour) {
	if p.set.IsEmpty() {
		p.set = emptySet(f)
	}
}
