package mongo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store"
)

// rights describes the privileges of the user.
type rights struct {
	unrestricted bool // no access control
	user, from   string
	privileges   []privilege
	roles        []string // roles defined in the database admin
	remedyShown  bool     // the complete remedy was already reported
}

type privilege struct {
	Resource struct {
		Database   *string `bson:"db"`
		Collection *string `bson:"collection"`
		Any        bool    `bson:"anyResource"`
	} `bson:"resource"`
	Actions []string `bson:"actions"`
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
	is := func(name *string, want string) bool { return name != nil && (*name == "" || *name == want) }
	if p.Resource.Database != nil && *p.Resource.Database == "" && p.Resource.Collection != nil && *p.Resource.Collection == "" {
		return !strings.HasPrefix(collection, "system.")
	}
	return p.Resource.Any || is(p.Resource.Database, database) && is(p.Resource.Collection, collection)
}

// outboxActions returns the actions that the relay performs on the collection of an outbox.
func outboxActions(o *store.Outbox) []string {
	actions := []string{"find", "update"}
	if o.Layout.State == store.StateNone {
		actions = actions[:1]
	}
	if o.Layout.DeleteDelivered || o.Retention > 0 {
		actions = append(actions, "remove")
	}
	return actions
}

// right is a privilege in the form of mongosh and the server.
type right struct {
	Resource struct {
		Database   string `json:"db"`
		Collection string `json:"collection"`
	} `json:"resource"`
	Actions []string `json:"actions"`
}

func rightOn(database, collection string, actions ...string) right {
	r := right{Actions: actions}
	r.Resource.Database, r.Resource.Collection = database, collection
	return r
}

// written formats a value for mongosh.
func written(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only, cannot fail
	}
	return string(text)
}

// grant returns the mongosh statements that grant the missing actions. The first time it
// creates a least-privilege role with everything the relay needs. If the user already has
// that role, it adds only the missing actions.
func (r *rights) grant(s *Store, database string, lacks right) []string {
	name := "sluicebox_" + s.name
	const administrator = "// as an administrator"
	switch {
	case slices.Contains(r.roles, name):
		return []string{administrator, fmt.Sprintf("db.getSiblingDB(\"admin\").grantPrivilegesToRole(%q, %s);", name, written([]right{lacks}))}
	case r.remedyShown:
		return []string{"// role " + name + " includes it; see above"}
	}

	r.remedyShown = true
	role := struct {
		Role       string   `json:"role"`
		Privileges []right  `json:"privileges"`
		Roles      []string `json:"roles"`
	}{name, s.requiredPrivileges(database), []string{}}
	user := []map[string]string{{"role": name, "db": "admin"}}
	return []string{
		administrator,
		"db.getSiblingDB(\"admin\").createRole(" + written(role) + ");",
		fmt.Sprintf("db.getSiblingDB(%q).grantRolesToUser(%q, %s);", r.from, r.user, written(user)),
	}
}

// requiredPrivileges returns all privileges of the relay, including its source's.
func (s *Store) requiredPrivileges(database string) []right {
	var list []right
	for _, name := range s.outboxes.Names() {
		o, in := s.outboxes.Lookup(name), database
		if o.Schema != "" {
			in = o.Schema
		}
		list = append(list, rightOn(in, o.Table, append(outboxActions(o), "listIndexes")...))
	}

	for _, own := range ownCollections() {
		list = append(list, rightOn(database, own.name, own.actions...))
	}
	return list
}
