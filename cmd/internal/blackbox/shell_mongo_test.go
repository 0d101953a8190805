package blackbox

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

var (
	shellComment = regexp.MustCompile(`(?m)^\s*(//|--).*$`)
	shellKey     = regexp.MustCompile(`([{,]\s*)([A-Za-z_$][\w$.]*)\s*:`)
	shellCall    = regexp.MustCompile(`^(?:db\.getSiblingDB\(("[^"]*")\)|(db|rs))(?:\.getCollection\(("[^"]*")\))?\.(\w+)\(`)
)

// mongosh runs statements for the MongoDB shell, which is not available here. A statement is one
// call with constant arguments, ended by ; or by a newline after its brackets are closed.
// password replaces the passwordPrompt call.
func mongosh(t testing.TB, db *mongo.Database, script, password string) {
	t.Helper()
	script = shellComment.ReplaceAllString(script, "")
	script = strings.ReplaceAll(script, "passwordPrompt()", fmt.Sprintf("%q", password))
	for {
		script = strings.TrimLeft(script, "; \n")
		if script == "" {
			return
		}
		call := shellCall.FindStringSubmatch(script)
		if call == nil {
			t.Fatalf("this is no statement that the tests know: %s", script)
		}
		end := closing(script, len(call[0])-1)
		if end < 0 {
			t.Fatalf("a bracket is open in: %s", script)
		}
		args := shellArguments(t, script[len(call[0]):end])
		on := db
		if call[1] != "" {
			on = db.Client().Database(strings.Trim(call[1], `"`))
		}
		if err := shellRun(on, strings.Trim(call[3], `"`), call[2]+"."+call[4], args); err != nil {
			t.Fatalf("%v, in: %s", err, script[:end+1])
		}
		script = script[end+1:]
	}
}

// closing returns the index of the bracket that closes the one at a position.
func closing(text string, at int) int {
	depth, quoted := 0, false
	for i := at; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// shellArguments parses constants, whose keys may be unquoted.
func shellArguments(t testing.TB, text string) bson.A {
	t.Helper()
	var parsed struct{ A bson.A }
	text = shellKey.ReplaceAllString(text, `$1"$2":`)
	if err := bson.UnmarshalExtJSON([]byte(`{"a": [`+text+`]}`), false, &parsed); err != nil {
		t.Fatalf("%v, in: %s", err, text)
	}
	return parsed.A
}

// shellRun runs one method as its command.
func shellRun(db *mongo.Database, collection, method string, args bson.A) error {
	ctx := context.Background()
	document := func(i int) bson.D { d, _ := args[i].(bson.D); return d }
	_, name, _ := strings.Cut(method, ".")
	command := bson.D{{Key: name}}
	switch name {
	case "adminCommand":
		return db.Client().Database("admin").RunCommand(ctx, document(0)).Err()
	case "runCommand":
		return db.RunCommand(ctx, document(0)).Err()
	case "createUser", "createRole": // its name is in the document
		named := strings.ToLower(strings.TrimPrefix(name, "create"))
		for _, e := range document(0) {
			if e.Key == named {
				command[0].Value = e.Value
				continue
			}
			command = append(command, e)
		}
		return db.RunCommand(ctx, command).Err()
	case "grantRolesToUser":
		return db.RunCommand(ctx, bson.D{{Key: name, Value: args[0]}, {Key: "roles", Value: args[1]}}).Err()
	case "grantPrivilegesToRole":
		return db.RunCommand(ctx, bson.D{{Key: name, Value: args[0]}, {Key: "privileges", Value: args[1]}}).Err()
	case "createCollection":
		return db.CreateCollection(ctx, fmt.Sprint(args[0]))
	case "createIndex":
		index := bson.D{{Key: "key", Value: args[0]}}
		label := ""
		for _, e := range document(0) {
			label += fmt.Sprint(e.Key, "_", e.Value, "_")
		}
		index = append(index, bson.E{Key: "name", Value: strings.TrimSuffix(label, "_")})
		if len(args) > 1 {
			index = append(index, document(1)...)
		}
		return db.RunCommand(ctx, bson.D{{Key: "createIndexes", Value: collection}, {Key: "indexes", Value: bson.A{index}}}).Err()
	case "updateOne":
		update := bson.D{{Key: "q", Value: args[0]}, {Key: "u", Value: args[1]}}
		if len(args) > 2 {
			update = append(update, document(2)...)
		}
		return db.RunCommand(ctx, bson.D{{Key: "update", Value: collection}, {Key: "updates", Value: bson.A{update}}}).Err()
	case "drop":
		return db.Collection(collection).Drop(ctx)
	}
	return fmt.Errorf("the tests do not know the method %s", method)
}
