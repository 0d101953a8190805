package mysql

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/store"
)

// binlogPosition is a point in a server's binlog: the transactions before it, and its
// file and offset.
type binlogPosition struct {
	set gtidSet
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

	switch within, covers := y.set.contains(x.set), x.set.contains(y.set); {
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

// gtidSet is the set of transactions before a position, in either flavour.
type gtidSet interface {
	add(g *gtid)
	contains(other gtidSet) bool
	clone() gtidSet
	// forDump returns a copy for the syncer, which modifies it.
	forDump() mysql.GTIDSet
	String() string
}

// parseSet parses a GTID set of either flavour. Only MySQL's format has colons.
func parseSet(text string) (gtidSet, error) {
	if text == "" {
		return flavourlessSet{}, nil
	}
	if strings.Contains(text, ":") {
		set, err := mysql.ParseMysqlGTIDSet(text)
		if err != nil {
			return nil, err
		}
		return &mysqlSet{set: set.(*mysql.MysqlGTIDSet)}, nil
	}

	set := mariaSet{}
	for _, part := range strings.Split(text, ",") {
		id, err := mysql.ParseMariadbGTID(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		set[id.DomainID] = *id
	}

	return set, nil
}

// sameSet reports whether two sets hold the same transactions. MariaDB's sets hold the
// last transaction of each domain and the server that wrote it.
func sameSet(a, b gtidSet) bool {
	x, maria := a.(mariaSet)
	y, both := b.(mariaSet)
	if maria && both {
		return maps.Equal(x, y)
	}
	return a.contains(b) && b.contains(a)
}

// isEmpty reports whether a set holds no transactions.
func isEmpty(set gtidSet) bool { return set.String() == "" }

// flavourlessSet is the empty set of an unknown flavour.
type flavourlessSet struct{}

func (flavourlessSet) add(*gtid)                   {}
func (flavourlessSet) contains(other gtidSet) bool { return isEmpty(other) }
func (flavourlessSet) clone() gtidSet              { return flavourlessSet{} }
func (flavourlessSet) String() string              { return "" }
func (flavourlessSet) forDump() mysql.GTIDSet      { return nil }

// mysqlSet is a set of MySQL: intervals of transaction numbers per server.
type mysqlSet struct{ set *mysql.MysqlGTIDSet }

func (s *mysqlSet) add(g *gtid) { s.set.AddGTIDWithTag(g.server, g.tag, g.number) }

func (s *mysqlSet) contains(other gtidSet) bool {
	o, ok := other.(*mysqlSet)
	return ok && s.set.Contain(o.set) || !ok && isEmpty(other)
}

func (s *mysqlSet) clone() gtidSet         { return &mysqlSet{set: s.set.Clone().(*mysql.MysqlGTIDSet)} }
func (s *mysqlSet) String() string         { return s.set.String() }
func (s *mysqlSet) forDump() mysql.GTIDSet { return s.set.Clone() }

// mariaSet is a position of MariaDB: the last transaction of each domain.
type mariaSet map[uint32]mysql.MariadbGTID

func (s mariaSet) add(g *gtid) { s[g.maria.DomainID] = g.maria }

func (s mariaSet) contains(other gtidSet) bool {
	o, ok := other.(mariaSet)
	for domain, g := range o {
		if own, there := s[domain]; !there || own.SequenceNumber < g.SequenceNumber {
			return false
		}
	}
	return ok || isEmpty(other)
}

func (s mariaSet) clone() gtidSet {
	c := make(mariaSet, len(s))
	for domain, g := range s {
		c[domain] = g
	}
	return c
}

func (s mariaSet) forDump() mysql.GTIDSet {
	set := &mysql.MariadbGTIDSet{Sets: make(map[uint32]*mysql.MariadbGTID, len(s))}
	for domain, g := range s {
		set.Sets[domain] = &g
	}
	return set
}

func (s mariaSet) String() string { return s.forDump().String() }

// emptySet returns the empty set of a flavour.
func emptySet(f flavour) gtidSet {
	if f == mariaDB {
		return mariaSet{}
	}
	none := mysql.NewMysqlGTIDSet()
	return &mysqlSet{set: &none}
}

// resolveFlavour gives an empty set its flavour.
func (p *binlogPosition) resolveFlavour(f flavour) {
	if _, none := p.set.(flavourlessSet); none {
		p.set = emptySet(f)
	}
}
