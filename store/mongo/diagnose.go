package mongo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/columns"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// Diagnose implements store.Diagnoser. A permanently refused login is a finding; an
// unreachable server is an error.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	c := &checker{List: finding.List{Subject: "connection"}, store: s, thorough: true}
	err := s.onServer(ctx, func(ctx context.Context, on *conn) error {
		c.conn = on
		c.connection(s.server.url)
		for _, check := range []func(context.Context) error{c.run, c.clock, c.durability} {
			if err := check(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	var setup *store.SetupError
	switch {
	case err == nil:
		return c.Findings, nil
	case c.conn == nil && errors.As(err, &setup):
		c.AddSetupError(setup)
		return c.Findings, nil
	}

	return c.Findings, fmt.Errorf("diagnose database: %w", Explain(err))
}

// connection reports the hosts and whether the connection uses TLS.
func (c *checker) connection(url string) {
	opts, _, err := ParseURL(url, "")
	if err != nil {
		return // already parsed when the connection was opened
	}

	hosts := strings.Join(opts.Hosts, ", ")
	local := !slices.ContainsFunc(opts.Hosts, func(host string) bool {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			name = host
		}
		return !store.Loopback(name)
	})
	with := opts.TLSConfig
	c.AddEncryption(hosts, finding.Encryption{Local: local, Encrypted: with != nil, Verified: with != nil && !with.InsecureSkipVerify},
		"// enable TLS on the server and add tls=true to source.url, without tlsInsecure and tlsAllowInvalidCertificates")
}

// checkWritable checks that the replica set has a primary. Check leaves it out, because an
// election fixes it without an operator.
func (c *checker) checkWritable(ctx context.Context) error {
	if c.conn.standalone.Load() {
		return nil
	}

	g, err := c.conn.hello(ctx)
	if err != nil || g.SetName == "" { // a mongos
		return err
	}
	if !g.Writable {
		c.AddFault("replica set "+g.SetName+" has no primary", "// see rs.status()")
		return nil
	}
	c.Add(store.GradeOK, fmt.Sprintf("replica set %s of %d members, primary %s", g.SetName, len(g.Hosts), g.Primary))
	return nil
}

// clock compares this machine's clock with the primary's, because claims carry times.
func (c *checker) clock(ctx context.Context) error {
	c.Subject = "clock"
	before := time.Now()
	g, err := c.conn.hello(ctx)
	if err == nil {
		c.AddClockSkew(before, g.Now, time.Now())
	}
	return err
}

// durability reports whether acknowledged writes survive a server crash.
func (c *checker) durability(ctx context.Context) error {
	c.Subject = "durability"
	if c.conn.standalone.Load() {
		c.Add(store.GradeOK, "acknowledged writes are in the journal")
		return nil
	}

	var answer struct {
		Config struct {
			Journal *bool `bson:"writeConcernMajorityJournalDefault"`
		} `bson:"config"`
	}

	err := c.conn.run(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}, &answer)
	switch {
	case hasCode(err, codeUnauthorized), err != nil && !Unreachable(err):
		return nil // few users may read it
	case err != nil:
		return err
	case answer.Config.Journal != nil && !*answer.Config.Journal:
		c.Add(store.GradeAdvice, "members acknowledge writes held only in memory (writeConcernMajorityJournalDefault is false): the last writes are lost if all members crash",
			"cfg = rs.conf(); cfg.writeConcernMajorityJournalDefault = true; rs.reconfig(cfg);")
	default:
		c.Add(store.GradeOK, "a majority-committed write survives a crash of the other members")
	}

	return nil
}

// unsettledIndex checks for an index on the state fields. Without it each poll, each sweep
// and each snapshot scans the whole collection, delivered documents included.
func (c *checker) unsettledIndex(ctx context.Context, t *table) error {
	state := columns.StateColumns(&t.Layout)
	if len(state) == 0 {
		return nil
	}

	database, collection := t.collection.Database().Name(), t.collection.Name()
	if lacks := c.rights.lacks(database, collection, []string{"listIndexes"}); len(lacks) > 0 {
		c.Add(store.GradeAdvice, fmt.Sprintf("user %s lacks listIndexes on %s: its indexes are not checked", c.rights.user, t.path()),
			c.rights.grant(c.store, c.conn.db.Name(), privilegeOn(database, collection, lacks...))...)
		return nil
	}
	serves, err := t.indices(ctx, func(spec bson.Raw) bool {
		fields, _ := spec.Lookup("key").Document().Elements()
		return len(fields) > 0 && slices.Contains(state, fields[0].Key())
	})
	if err != nil {
		return err
	}

	if serves {
		c.Add(store.GradeOK, "an index covers the unsettled documents")
		return nil
	}

	c.Add(store.GradeAdvice, fmt.Sprintf("%s has no index for unsettled documents: polling, sweeps and snapshots scan the whole collection", t.path()),
		fmt.Sprintf("%s.createIndex(%s);", shellOf(t.Outbox), shellKeys(slices.Concat(state, t.ordered()))))
	return nil
}

// rights describes the privileges of the user.
type rights struct {
	unrestricted bool // no access control
	user, from   string
	privileges   []privilege
	roles        []string // roles defined in the database admin
	remedyShown  bool     // the complete remedy was already reported
}

// privilege is a privilege in the form of the server and of mongosh.
type privilege struct {
	Resource resource `bson:"resource" json:"resource"`
	Actions  []string `bson:"actions" json:"actions"`
}

type resource struct {
	Database   *string `bson:"db" json:"db"`
	Collection *string `bson:"collection" json:"collection"`
	Any        bool    `bson:"anyResource" json:"-"`
}

func privilegeOn(database, collection string, actions ...string) privilege {
	return privilege{resource{&database, &collection, false}, actions}
}

// rights reads the user's privileges. Without an authenticated user the server has no
// access control, or grants everything to local connections (localhost exception).
func (c *conn) rights(ctx context.Context) (rights, error) {
	var status struct {
		Auth struct {
			Users []struct {
				User string `bson:"user"`
				From string `bson:"db"`
			} `bson:"authenticatedUsers"`
			Roles []struct {
				Role string `bson:"role"`
				From string `bson:"db"`
			} `bson:"authenticatedUserRoles"`
			Privileges []privilege `bson:"authenticatedUserPrivileges"`
		} `bson:"authInfo"`
	}

	if err := c.run(ctx, bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}}, &status); err != nil {
		return rights{}, err
	}

	if len(status.Auth.Users) == 0 {
		return rights{unrestricted: true}, nil
	}

	u := status.Auth.Users[0]
	r := rights{user: u.User, from: u.From, privileges: status.Auth.Privileges}
	for _, role := range status.Auth.Roles {
		if role.From == "admin" {
			r.roles = append(r.roles, role.Role)
		}
	}

	return r, nil
}

// LackingPrivileges returns the actions that the user of a client may not perform on a collection, and
// the statements for mongosh that grant them. Without access control there are none.
func LackingPrivileges(ctx context.Context, in *mongo.Collection, actions ...string) (user string, lacks []string, grant string, err error) {
	db := in.Database()
	r, err := (&conn{client: db.Client(), db: db}).rights(ctx)
	if err != nil {
		return "", nil, "", err
	}
	if lacks = r.lacks(db.Name(), in.Name(), actions); len(lacks) > 0 {
		role := "write_" + in.Name()
		grant = strings.Join(r.grantRole(role, []privilege{privilegeOn(db.Name(), in.Name(), actions...)}), "\n")
	}
	return r.user, lacks, grant, nil
}

// lacks returns the actions that the user may not perform on a collection.
func (r *rights) lacks(database, collection string, actions []string) []string {
	if r.unrestricted {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(actions), func(action string) bool {
		return slices.ContainsFunc(r.privileges, func(p privilege) bool {
			return p.covers(database, collection) && slices.Contains(p.Actions, action)
		})
	})
}

func (p *privilege) covers(database, collection string) bool {
	r := &p.Resource
	if r.Any || r.Database == nil || r.Collection == nil {
		return r.Any
	}
	if *r.Database == "" && *r.Collection == "" {
		return !strings.HasPrefix(collection, "system.")
	}
	return (*r.Database == "" || *r.Database == database) && (*r.Collection == "" || *r.Collection == collection)
}

// outboxActions returns the actions that the relay performs on the collection of an outbox.
func outboxActions(o *store.Outbox) []string {
	actions := []string{"find", "update"}
	if o.Layout.State == store.StateNone {
		actions = actions[:1]
	}
	if o.Layout.DeleteDelivered || o.Retention > 0 || o.FailedArchive != "" {
		actions = append(actions, "remove")
	}
	return actions
}

// written formats a value for mongosh.
func written(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only, cannot fail
	}
	return string(text)
}

// asAdministrator is a line before statements for mongosh.
const asAdministrator = "// as an administrator"

// grant returns the mongosh statements that grant the missing actions. The first time it
// creates a least-privilege role with everything the relay needs. If the user already has
// that role, it adds only the missing actions.
func (r *rights) grant(s *Store, database string, lacks privilege) []string {
	relay, _, _ := strings.Cut(s.name, "/") // one role for the shards of a relay
	name := "sluicebox_" + relay
	switch {
	case slices.Contains(r.roles, name):
		return []string{asAdministrator, fmt.Sprintf("db.getSiblingDB(\"admin\").grantPrivilegesToRole(%q, %s);", name, written([]privilege{lacks}))}
	case r.remedyShown:
		return []string{"// role " + name + " includes it; see above"}
	}

	r.remedyShown = true
	return r.grantRole(name, s.requiredPrivileges(database))
}

// grantRole returns the mongosh statements that create a role and grant it to the user.
func (r *rights) grantRole(name string, privileges []privilege) []string {
	role := struct {
		Role       string      `json:"role"`
		Privileges []privilege `json:"privileges"`
		Roles      []string    `json:"roles"`
	}{name, privileges, []string{}}
	user := []map[string]string{{"role": name, "db": "admin"}}
	return []string{
		asAdministrator,
		"db.getSiblingDB(\"admin\").createRole(" + written(role) + ");",
		fmt.Sprintf("db.getSiblingDB(%q).grantRolesToUser(%q, %s);", r.from, r.user, written(user)),
	}
}

// requiredPrivileges returns all privileges of the relay, including its source's.
func (s *Store) requiredPrivileges(database string) []privilege {
	var list []privilege
	for _, name := range s.outboxes.Names() {
		o, in := s.outboxes.Lookup(name), database
		if o.Schema != "" {
			in = o.Schema
		}
		list = append(list, privilegeOn(in, o.Table, append(outboxActions(o), "listIndexes")...))
		for _, a := range o.ArchiveTables() {
			list = append(list, privilegeOn(cmp.Or(a.Schema, database), a.Table, archiveActions()...))
		}
	}

	for _, own := range ownCollections() {
		list = append(list, privilegeOn(database, own.name, own.actions...))
	}
	return list
}
