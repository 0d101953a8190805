package mongo_test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/store/outbox/mongo"
	"github.com/sluicebox/sluicebox/store/outbox/outboxtest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// The users need a replica set with access control.
func TestDiagnose(t *testing.T) {
	set := servers.StartMongo(t, 1, nil)
	set.Auth()
	url := set.Database()
	name := servers.OpenMongo(t, url).Name()
	required := bson.A{"id", "payload", "extra", "shard"}
	validator := func() bson.E {
		return bson.E{Key: "validator", Value: bson.M{"$jsonSchema": bson.M{"required": required}}}
	}
	set.Run(name, bson.D{{Key: "create", Value: "whole"}})
	set.Run(name, bson.D{{Key: "create", Value: "lacking"}, validator()})
	set.Run("admin", bson.D{{Key: "createUser", Value: "writer"}, {Key: "pwd", Value: "secret"}, {Key: "roles", Value: bson.A{}}})
	_, host, _ := strings.Cut(url, "@")
	outboxtest.RunDiagnose(t, &outboxtest.Diagnosis{
		Diagnose: mongo.Diagnose, URL: url, Powerless: "mongodb://writer:secret@" + host,
		Apply: func(remedy string) {
			_, role, grants := strings.Cut(remedy, "createRole(")
			if !grants {
				required = slices.DeleteFunc(required, func(field any) bool { return strings.HasPrefix(remedy, "remove "+field.(string)) })
				set.Run(name, bson.D{{Key: "collMod", Value: "lacking"}, validator()})
				return
			}
			role, _, _ = strings.Cut(role, ");\n")
			var created bson.D
			if err := bson.UnmarshalExtJSON([]byte(role), false, &created); err != nil {
				t.Fatalf("%v in %s", err, remedy)
			}
			set.Run("admin", append(bson.D{{Key: "createRole", Value: created[0].Value}}, created[1:]...))
			set.Run("admin", bson.D{{Key: "grantRolesToUser", Value: "writer"}, {Key: "roles", Value: bson.A{created[0].Value}}})
		},
	})
}
