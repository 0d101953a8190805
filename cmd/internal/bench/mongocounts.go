package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// scans returns the reads of the outbox that the server counted for the collection
// (https://www.mongodb.com/docs/v6.0/reference/operator/aggregation/collStats/). Reads of
// the change stream do not count. The query itself counts as a read in the next result.
func (d *mongoDatabase) scans(ctx context.Context) (int, error) {
	cursor, err := d.rows.Aggregate(ctx, mongo.Pipeline{{{Key: "$collStats", Value: bson.D{{Key: "latencyStats", Value: bson.D{}}}}}})
	if err != nil {
		return 0, errNotMeasured // the user may not read it
	}
	var found []struct {
		Stats struct {
			Reads struct {
				Ops int
			}
		} `bson:"latencyStats"`
	}
	if err := cursor.All(ctx, &found); err != nil || len(found) != 1 {
		return 0, errors.Join(err, errNotMeasured)
	}
	d.scanQueries++
	return found[0].Stats.Reads.Ops - (d.scanQueries - 1), nil
}

// serverStatus returns the server's counters since its start, for all clients.
func (s *mongoServer) serverStatus(ctx context.Context) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.admin(ctx, bson.D{{Key: "serverStatus", Value: 1}})
}

// countStatements implements counter. MongoDB counts statements, but reports time only for
// all reads, writes and commands together.
func (d *mongoDatabase) countStatements(ctx context.Context) (err error) {
	if d.countsBefore, err = d.serverStatus(ctx); err != nil {
		return errors.New("user may not read serverStatus; grant it the role clusterMonitor in admin")
	}
	return nil
}

// statements returns the growth of the counters since countStatements.
func (d *mongoDatabase) statements(ctx context.Context) (string, error) {
	now, err := d.serverStatus(ctx)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	text.WriteString("MongoDB reports no time per kind of statement, and its counters include all clients, also the writers:\n\n")
	for _, of := range [][]string{
		{"metrics", "commands"}, {"opLatencies"}, {"metrics", "document"}, {"metrics", "operation"}, {"metrics", "queryExecutor"}, {"metrics", "getLastError"}, {"transactions"}, {"wiredTiger", "log"}, {"extra_info"},
	} {
		for _, line := range counterGrowth(of, d.countsBefore.Lookup(of...), now.Lookup(of...)) {
			text.WriteString(line + "\n")
		}
	}
	return text.String(), nil
}

// counterGrowth returns the numbers in a document that have grown, with their growth.
func counterGrowth(path []string, before, after bson.RawValue) (lines []string) {
	if doc, ok := after.DocumentOK(); ok {
		elements, err := doc.Elements()
		if err != nil {
			return nil
		}
		was, _ := before.DocumentOK()
		for _, e := range elements {
			lines = append(lines, counterGrowth(append(slices.Clone(path), e.Key()), was.Lookup(e.Key()), e.Value())...)
		}
		return lines
	}
	n, isNumber := after.AsInt64OK()
	was, _ := before.AsInt64OK()
	if !isNumber || n <= was {
		return nil
	}
	return []string{fmt.Sprintf("%12d  %s", n-was, strings.Join(path, "."))}
}
