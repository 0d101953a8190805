package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/sluicebox/sluicebox/cmd/internal/bench/floor"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
	"github.com/sluicebox/sluicebox/store"
	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// mongoServer is a MongoDB replica set.
type mongoServer struct {
	client *mongo.Client
	hosts  []string
	info   serverInfo
}

// connectMongo connects to the server. The URL need not name a database.
func connectMongo(ctx context.Context, source string) (*mongoServer, error) {
	at, err := demodb.InDatabase(source, namePrefix+"none") // nothing is created in it
	if err != nil {
		return nil, err
	}

	opts, _, err := mongostore.ParseURL(at, "sluicebox bench")
	if err != nil {
		return nil, err
	}

	onDisk := true
	client, err := demodb.OpenMongo(opts.SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &onDisk}))
	if err != nil {
		return nil, err
	}

	s := &mongoServer{client: client, hosts: opts.Hosts, info: serverInfo{settings: map[string]string{}, syncsCommits: true}}
	if err := s.checkReplicaSet(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *mongoServer) serverInfo() serverInfo { return s.info }

func (s *mongoServer) close() { demodb.CloseMongo(s.client) }

// admin runs a command on the admin database.
func (s *mongoServer) admin(ctx context.Context, command bson.D) (bson.Raw, error) {
	return s.client.Database("admin").RunCommand(ctx, command).Raw()
}

// checkReplicaSet checks that the server is a replica set. The relay checks everything else.
func (s *mongoServer) checkReplicaSet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	hello, err := s.admin(ctx, bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return fmt.Errorf("read server settings: %w", mongostore.Explain(err))
	}

	build, err := s.admin(ctx, bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return fmt.Errorf("read server settings: %w", mongostore.Explain(err))
	}

	version, _ := build.Lookup("version").StringValueOK()
	s.info.version = "MongoDB " + version
	if _, isSet := hello.Lookup("setName").StringValueOK(); !isSet {
		return &store.SetupError{
			Problem: "server is not a member of a replica set; the benchmark needs change streams and transactions",
			Remedy:  "start mongod with --replSet rs0, and run once in mongosh:\nrs.initiate()",
		}
	}
	if hosts, ok := hello.Lookup("hosts").ArrayOK(); ok {
		members, _ := hosts.Values()
		s.info.settings["members"] = strconv.Itoa(len(members))
	}

	s.readSettings(ctx)
	return nil
}

// readSettings reads the settings that the user may read.
func (s *mongoServer) readSettings(ctx context.Context) {
	if config, err := s.admin(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}); err == nil {
		journals, ok := config.Lookup("config", "writeConcernMajorityJournalDefault").BooleanOK()
		s.info.settings["writeConcernMajorityJournalDefault"] = strconv.FormatBool(journals || !ok)
	}
	status, err := s.serverStatus(ctx)
	if err != nil {
		return // few users have the right
	}
	if pid, ok := status.Lookup("pid").AsInt64OK(); ok && len(s.hosts) == 1 {
		s.info.process = localProcess(s.hosts[0], int(pid), "mongod")
	}
	s.info.settings["storageEngine"], _ = status.Lookup("storageEngine", "name").StringValueOK()
	if bytes, ok := status.Lookup("wiredTiger", "cache", "maximum bytes configured").AsInt64OK(); ok {
		s.info.settings["wiredTigerCacheBytes"] = strconv.FormatInt(bytes, 10)
	}
}

func (s *mongoServer) create(ctx context.Context, name, _ string, of *outboxTable) (database, error) {
	db := s.client.Database(name)
	var models []mongo.IndexModel
	for _, keys := range of.documentIndexes() {
		models = append(models, mongo.IndexModel{Keys: keys})
	}
	if err := db.CreateCollection(ctx, of.name); err != nil {
		return nil, s.explain(err)
	}
	if _, err := db.Collection(of.name).Indexes().CreateMany(ctx, models); err != nil {
		return nil, err
	}
	return &mongoDatabase{mongoServer: s, db: db, table: of, rows: db.Collection(of.name)}, nil
}

// explain adds the roles to grant if the user may not create databases.
func (s *mongoServer) explain(err error) error {
	if !demodb.Unauthorized(err) {
		return err
	}
	return &store.SetupError{
		Problem: "user may not create databases, which the benchmark does: " + mongostore.Explain(err).Error(),
		Remedy: "run in mongosh as an administrator, with the user's name and its authentication database, or use another server:\n" +
			`db.getSiblingDB("admin").grantRolesToUser("USER", ["readWriteAnyDatabase", "dbAdminAnyDatabase", "clusterMonitor"])`,
	}
}

func (s *mongoServer) drop(ctx context.Context, name string) error {
	return demodb.DropMongo(ctx, s.client, name, demodb.EndTimeout)
}

// mongoDatabase is a MongoDB database.
type mongoDatabase struct {
	*mongoServer
	db           *mongo.Database
	table        *outboxTable
	rows         *mongo.Collection
	scanQueries  int      // number of $collStats queries
	countsBefore bson.Raw // the server's counters at the start
}

// close does nothing: the connections belong to the server.
func (d *mongoDatabase) close() {}

// document returns row n.
func (d *mongoDatabase) document(r *rowSpan, n int) bson.D {
	var group, processed any
	l, now, is := d.table.documents(), time.Now(), store.Pending
	switch {
	case r.oneGroup != "":
		group = r.oneGroup
	case r.groups > 0:
		group = "g" + strconv.Itoa(r.firstGroup+n%r.groups)
	}
	if r.completed {
		is, processed = store.Completed, now
	}

	id, c := rowID(n), &l.Columns
	doc := bson.D{
		{Key: c.ID, Value: id}, {Key: "type", Value: "EVENT"}, {Key: c.Group, Value: group}, {Key: c.Payload, Value: payloadHead + id + r.padding},
		{Key: c.Status, Value: statusOf(l, is)}, {Key: c.RetryCount, Value: 0}, {Key: "createdAt", Value: now}, {Key: c.Error, Value: nil},
	}
	if c.Claimed == "processedAt" {
		return append(doc, bson.E{Key: c.Claimed, Value: processed})
	}
	return append(doc, bson.E{Key: c.Claimed, Value: now})
}

func statusOf(l *store.Layout, s store.Status) any {
	if l.State == store.StateNumbers {
		return l.Numbers[s]
	}
	return l.Words[s]
}

// maxCommandDocuments is the maximum number of documents in a transaction and in a command.
const maxCommandDocuments = 10_000

// load implements loader. It inserts completed documents without a transaction, because they
// are many and the server aborts long transactions.
func (d *mongoDatabase) load(ctx context.Context, r *rowSpan) error {
	if !r.completed {
		session, err := d.client.StartSession()
		if err != nil {
			return err
		}
		defer session.EndSession(context.WithoutCancel(ctx))
		_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, d.insert(ctx, r) })
		return err
	}
	return d.insert(ctx, r)
}

func (d *mongoDatabase) insert(ctx context.Context, r *rowSpan) error {
	for first := r.first; first <= r.last; first += maxCommandDocuments {
		var docs []bson.D
		for n := first; n <= min(r.last, first+maxCommandDocuments-1); n++ {
			docs = append(docs, d.document(r, n))
		}
		if _, err := d.rows.InsertMany(ctx, docs, options.InsertMany().SetOrdered(!r.completed)); err != nil {
			return err
		}
	}
	return nil
}

// flush requests a checkpoint, if the user may.
func (d *mongoDatabase) flush(ctx context.Context) error {
	_, err := d.admin(ctx, bson.D{{Key: "fsync", Value: 1}})
	var refused mongo.ServerError
	if errors.As(err, &refused) {
		return nil // few users have the right
	}
	return err
}

// mongoWriter writes documents. All writers share the connections.
type mongoWriter struct {
	*mongoDatabase
	span *rowSpan
}

func (d *mongoDatabase) writer(_ context.Context, r *rowSpan) (rowWriter, error) {
	return &mongoWriter{d, r}, nil
}

// write inserts a document as a service would. It returns when a majority has the document
// in its journal.
func (w *mongoWriter) write(ctx context.Context, n int) error {
	_, err := w.rows.InsertOne(ctx, w.document(w.span, n))
	return err
}

// prepareFloor sets the end of the oplog as the start position.
func (d *mongoDatabase) prepareFloor(ctx context.Context, cfg *floor.Config) error {
	answer, err := d.db.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Raw()
	if err != nil {
		return err
	}
	t, i, ok := answer.Lookup("operationTime").TimestampOK()
	if !ok {
		return errors.New("server returned no operationTime")
	}
	cfg.From = fmt.Sprintf("%d.%d", t, i)
	return nil
}

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
