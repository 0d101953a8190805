package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/store"
	mysqlstore "github.com/sluicebox/sluicebox/store/mysql"
)

// The parts of a relay that Doctor checks, in this order.
const (
	PartConfiguration = "configuration"
	PartDatabase      = "database"
	PartLog           = "log"
	PartSinks         = "sinks"
	PartAdmin         = "admin address"
)

// Finding is the result of one check.
type Finding struct {
	// Source is the name of the source. It is "" if the sources of a process share the checked part,
	// or if there is one source.
	Source string
	// Part is one of the parts above.
	Part string
	store.Finding
	// Unreachable marks a fault where something could not be reached. It may resolve
	// itself, or needs a fix elsewhere.
	Unreachable bool
	// Configuration is the part of a configuration that fits the table of an outbox, if the
	// configured layout does not.
	Configuration string
}

// doctorTimeout limits the check of each part: the database, the log, a sink.
const doctorTimeout = 15 * time.Second

// errDoctorTimeout is the cancellation cause after doctorTimeout.
var errDoctorTimeout = fmt.Errorf("no answer within %s", doctorTimeout)

// Doctor checks everything that a relay with this configuration depends on. It changes
// nothing, acquires neither the leader lock nor the slot, and delivers nothing, so it may
// run beside a relay. An unreachable server is a finding like any other. Of a configuration with
// several sources it checks all.
func Doctor(ctx context.Context, cfg *config.Config, version string) []Finding {
	d := &doctor{cfg: cfg, version: version}
	if cfg.SourceNames() != nil {
		d.checkSources(ctx)
		return d.findings
	}
	d.reportConfiguration()
	d.checkDatabase(ctx)
	d.checkScale(ctx)
	d.checkSinks(ctx)
	d.checkAdminAddress(ctx)
	d.checkIngest(ctx)
	return d.findings
}

// doctor collects findings.
type doctor struct {
	cfg      *config.Config
	version  string
	findings []Finding
}

func (d *doctor) add(part string, f store.Finding, unreachable bool) {
	d.findings = append(d.findings, Finding{Part: part, Finding: f, Unreachable: unreachable})
}

func (d *doctor) addOK(part, subject, text string) {
	d.add(part, store.Finding{Grade: store.GradeOK, Subject: subject, Text: text}, false)
}

// addError adds an error as a finding: a fault with a remedy, or something unreachable.
func (d *doctor) addError(part, subject string, err error) {
	f := store.Finding{Grade: store.GradeFault, Subject: subject, Text: err.Error()}
	var setup *store.SetupError
	if errors.As(err, &setup) {
		f.Text, f.Remedy = strings.TrimPrefix(setup.Problem, subject+": "), setup.Remedy
		d.add(part, f, false)
		return
	}

	if unreachable, ok := explainRefusedSession(&f, err); ok {
		d.add(part, f, unreachable)
		return
	}

	if errors.Is(err, context.DeadlineExceeded) {
		f.Text = errDoctorTimeout.Error()
	}
	f.Remedy = "start the server, allow connections from this machine, or fix source.url"
	d.add(part, f, true)
}

func (d *doctor) reportConfiguration() {
	d.addOK(PartConfiguration, "name", d.cfg.Settings.Name)
	d.reportOutboxes()
}

func (d *doctor) reportOutboxes() {
	s := &d.cfg.Settings
	names := make([]string, len(s.Outboxes))
	for i := range s.Outboxes {
		names[i] = s.Outboxes[i].Name + " to " + strings.Join(s.Outboxes[i].SinkNames(), " and ")
	}
	d.addOK(PartConfiguration, "outboxes", strings.Join(names, ", "))
	for i := range s.Outboxes {
		d.adviseRoutes(&s.Outboxes[i])
	}
}

// checkDatabase checks the database and its log.
func (d *doctor) checkDatabase(ctx context.Context) {
	db, err := openDatabase(d.cfg)
	if err != nil {
		d.addError(PartDatabase, "source.url", err)
		return
	}
	defer db.store.Close()
	reached := d.runChecks(ctx, PartDatabase, "database", db.store, adviseInstall(ctx, db.store.Tables))
	d.suggestCurrentTable(ctx)
	d.proposeLayouts(ctx)
	if !reached {
		return // the log is on the same server
	}

	polling := d.checkLog(ctx, db)
	d.reportClaims(ctx, db.store, polling)
}

// checkLog checks the log and reports whether the relay would poll instead.
func (d *doctor) checkLog(ctx context.Context, db *database) (polling bool) {
	mode := d.cfg.Settings.Source.Mode
	if mode == "poll" {
		if err := poll.Check(d.cfg.Outboxes()); err != nil {
			d.addError(PartLog, "source.mode", err)
		} else if poll.ReadsByPosition(d.cfg.Outboxes()) {
			d.addOK(PartLog, "source.mode", "poll: reads the table by position; rows that commit before the relay's first start are never read")
		} else {
			d.addOK(PartLog, "source.mode", "poll: reads the tables, not the log")
		}
		return true
	}

	src, err := db.newStream()
	if err != nil {
		d.addError(PartLog, "source", err)
		return false
	}
	defer src.Close()
	d.runChecks(ctx, PartLog, "log", src, func(f *store.Finding) {
		if mode == "auto" && poll.ShowsUnsettled(d.cfg.Outboxes()) && f.Grade == store.GradeFault {
			polling = true
			f.Grade = store.GradeAdvice
			f.Text += "; until fixed, the relay polls (source.mode: auto)"
		}
	})
	d.reportLogOnly(ctx, db.store)
	return polling
}

// reportClaims reports the claims mode that the relay would use, and why.
func (d *doctor) reportClaims(ctx context.Context, st store.CommitWaiter, polling bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	o, err := d.cfg.Relay("")
	if err != nil {
		return // checkDatabase has reported it
	}
	claims, err := o.ReadClaims(ctx, st, polling)
	if err != nil {
		d.addError(PartLog, "claims", err)
		return
	}
	d.addOK(PartLog, "claims", string(claims.Mode)+", "+claims.Reason)
}

// reportLogOnly reports the outboxes whose rows no snapshot finds, because only the log says
// which of them are to be sent.
func (d *doctor) reportLogOnly(ctx context.Context, of store.Checkpoints) {
	var names []string
	for _, o := range d.cfg.Outboxes() {
		if o.Layout.LogOnly() {
			names = append(names, o.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	f := store.Finding{Grade: store.GradeOK, Subject: "log-only rows", Text: "only the log has the rows of " + strings.Join(names, ", ") + ": "}
	if cp, err := of.LoadCheckpoint(ctx); err == nil && cp.Position != "" {
		f.Text += "if it is lost, the rows that were not read yet are lost with it, and a snapshot finds none of them"
	} else { // without the relay's tables, too
		f.Grade, f.Remedy = store.GradeAdvice, "start the relay before the services write them, and before you stop another sender of them"
		f.Text += "rows that commit before the relay's first start are never read, even if they are still in the table"
	}
	d.add(PartLog, f, false)
}

// suggestCurrentTable looks for the table that FlowCatalyst's SDKs write today, if the
// configured table of the older processor is at fault.
func (d *doctor) suggestCurrentTable(ctx context.Context) {
	today, s := store.OutboxMessages().Name, &d.cfg.Settings
	table := strings.ReplaceAll(today, "-", "_")
	faulty := func(o config.Outbox) bool {
		return o.Layout == store.FlowCatalyst().Name && slices.ContainsFunc(d.findings, func(f Finding) bool {
			return f.Part == PartDatabase && f.Grade == store.GradeFault && f.Subject == "outbox "+o.Name
		})
	}

	i := slices.IndexFunc(s.Outboxes, faulty)
	if i < 0 || slices.ContainsFunc(s.Outboxes, func(o config.Outbox) bool { return o.Layout == today }) {
		return
	}

	cfg, of := *d.cfg, s.Outboxes[i]
	cfg.Settings.Outboxes = []config.Outbox{{Name: table, Table: of.Table[:strings.LastIndex(of.Table, ".")+1] + table, Layout: today, Sink: of.SinkNames()[0]}}
	db, err := openDatabase(&cfg)
	if err != nil {
		return
	}
	defer db.store.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	found, _ := db.store.Diagnose(ctx) // checkDatabase has reported the errors
	if !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Grade == store.GradeOK && f.Subject == "outbox "+table }) {
		return
	}

	name := cfg.Settings.Outboxes[0].Table
	d.add(PartDatabase, store.Finding{
		Grade: store.GradeAdvice, Subject: "outbox " + of.Name,
		Text: fmt.Sprintf("table %s exists, which current FlowCatalyst SDKs write; %s belongs to the older processor", name, of.Table),
		Remedy: fmt.Sprintf("if your SDK writes it, replace the configuration of %s with:\noutboxes: [{table: %s, layout: %s, sink: platform}]\n"+
			"sinks: {platform: {type: flowcatalyst, api-base-url: '…', token: '…'}}", of.Table, name, today),
	}, false)
}

// installer is a store that reports whether Install would fix the relay's tables.
type installer interface {
	MayInstall(ctx context.Context) (bool, error)
}

// adviseInstall downgrades a fault that the relay fixes when it starts.
func adviseInstall(ctx context.Context, of store.Tables) func(*store.Finding) {
	by, asks := of.(installer)
	return func(f *store.Finding) {
		if !asks || f.Grade != store.GradeFault || f.Subject != "relay tables" && f.Subject != "relay collections" {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
		defer cancel()
		if may, err := by.MayInstall(ctx); err == nil && may {
			f.Grade = store.GradeAdvice
			f.Remedy += ", or start `sluicebox run`, whose role may do it"
		}
	}
}

// alreadyAdvised reports whether the same advice was given before. The database and its
// log depend on some of the same settings.
func (d *doctor) alreadyAdvised(f *store.Finding) bool {
	return f.Grade == store.GradeAdvice && f.Remedy != "" && slices.ContainsFunc(d.findings, func(g Finding) bool {
		return g.Grade == store.GradeAdvice && g.Remedy == f.Remedy
	})
}

// runChecks adds the findings of a diagnosis, each passed through change. It reports
// whether the diagnosis completed and the database accepted the connection.
func (d *doctor) runChecks(ctx context.Context, part, subject string, by store.Diagnoser, change func(*store.Finding)) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	found, err := by.Diagnose(ctx)
	for _, f := range found {
		if change != nil {
			change(&f)
		}
		if !d.alreadyAdvised(&f) {
			d.add(part, f, false)
		}
	}

	if err != nil {
		d.addError(part, subject, err)
	}
	return err == nil && slices.ContainsFunc(found, func(f store.Finding) bool { return f.Grade == store.GradeOK })
}

// sinkProbe is one probe of a sink.
type sinkProbe struct {
	sink, kind, endpoint string
}

// sinkProbes lists each endpoint of each sink once. A replay may send rows of every
// outbox to a sink without a route.
func (d *doctor) sinkProbes(sinks map[string]config.OpenSink) []sinkProbe {
	var list []sinkProbe
	for _, name := range slices.Sorted(maps.Keys(sinks)) {
		for i, o := range d.cfg.Outboxes() {
			if !d.cfg.Settings.Outboxes[i].SendsTo(name) && d.isRouted(name) {
				continue
			}
			p := sinkProbe{name, o.Kind, sinks[name].Limits(o.Kind).Endpoint}
			if o.Kind == "" {
				p.endpoint = "" // a column holds the kind; any endpoint serves
			}
			if !slices.ContainsFunc(list, func(q sinkProbe) bool { return q.sink == p.sink && q.endpoint == p.endpoint }) {
				list = append(list, p)
			}
		}
	}

	return list
}

// isRouted reports whether an outbox routes to the sink.
func (d *doctor) isRouted(sink string) bool {
	return slices.Contains(slices.Collect(maps.Values(d.cfg.Routes())), sink)
}

// checkSinks probes all sinks concurrently.
func (d *doctor) checkSinks(ctx context.Context) {
	sinks := map[string]config.OpenSink{}
	for _, name := range d.cfg.Sinks() {
		s, err := d.cfg.OpenSink(name, userAgent(d.version))
		if err != nil {
			d.addError(PartSinks, name, &store.SetupError{Problem: err.Error()})
			continue
		}
		defer s.Close()
		sinks[name] = s
	}

	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, errDoctorTimeout)
	defer cancel()
	probes := d.sinkProbes(sinks)
	outcomes := make([]sink.Outcome, len(probes))
	var asking sync.WaitGroup
	for i, p := range probes {
		asking.Go(func() { outcomes[i] = sinks[p.sink].Probe(ctx, p.kind) })
	}

	asking.Wait()
	for i, out := range outcomes {
		f, unreachable := probeFinding(probes[i].sink, d.cfg.Settings.Sinks[probes[i].sink].Type, out)
		if !d.isRouted(probes[i].sink) {
			f, unreachable = replaySinkFinding(f), false
		}
		d.add(PartSinks, f, unreachable)
	}
	d.adviseKeys()
}

// adviseKeys reports the sinks whose keys spread the rows of a message group over the partitions of a
// topic.
func (d *doctor) adviseKeys() {
	routes := d.cfg.Routes()
	for _, o := range d.cfg.Outboxes() {
		name := routes[o.Name]
		s := d.cfg.Settings.Sinks[name]
		if s.Type != config.SinkKafka || s.Kafka.Key == kafka.KeyGroup || o.Layout.GroupColumns() == nil {
			continue
		}
		d.add(PartSinks, store.Finding{
			Grade: store.GradeAdvice, Subject: name,
			Text: fmt.Sprintf("outbox %s has message groups, and key: %s spreads the rows of a group over partitions, so that consumers may read them out of order",
				o.Name, s.Kafka.Key),
			Remedy: "remove key of sink " + name + ", unless the order does not matter",
		}, false)
	}
}

// probeFinding converts the outcome of a probe of a sink into a finding. What else a broker
// lacks is in the outcome.
func probeFinding(name, kind string, out sink.Outcome) (f store.Finding, unreachable bool) {
	overHTTP := kind == config.SinkFlowCatalyst || kind == config.SinkWebhook
	f = store.Finding{Grade: store.GradeFault, Subject: name, Text: out.Detail}
	switch {
	case out.Class == sink.Delivered:
		f.Grade = store.GradeOK
	case out.Class == sink.Refused:
		f.Grade = store.GradeAdvice
		f.Remedy = "check the receiver and the address of sink " + name
	case out.Class == sink.Unavailable:
		f.Remedy = "start the receiver, allow connections from this machine, or fix the address of sink " + name
		return f, true
	case kind == config.SinkLog:
		f.Remedy = "create the folder, allow this user to write there, or correct output of sink " + name
	case !overHTTP && (out.Reason == store.ReasonUnauthorized || out.Reason == store.ReasonForbidden):
		f.Remedy = "allow the user of sink " + name + " at its destination, or correct its credentials"
	case !overHTTP:
		f.Remedy = "correct the keys of sink " + name + ", or its destination"
	case out.Reason == store.ReasonUnauthorized:
		f.Remedy = "give sink " + name + " a token (or an OAuth client) that the receiver accepts"
	case out.Reason == store.ReasonForbidden:
		f.Remedy = "allow deliveries with the token of sink " + name + " in the receiver, or set another token"
	default:
		f.Remedy = "fix the address, the ca-file or the proxy (HTTPS_PROXY) of sink " + name
	}

	return f, false
}

// replaySinkFinding downgrades a fault of a sink without a route, because the relay needs
// that sink only for replays.
func replaySinkFinding(f store.Finding) store.Finding {
	if f.Grade == store.GradeFault {
		f.Grade = store.GradeAdvice
	}
	f.Text += " (no outbox routes to it; only replays use it)"
	return f
}

// checkAdminAddress checks whether the relay could listen, or already does.
func (d *doctor) checkAdminAddress(ctx context.Context) {
	listen := d.cfg.Settings.Admin.Listen
	if listen == "" {
		d.addOK(PartAdmin, "admin.listen", "empty: no probes, no metrics")
		return
	}

	server := admin.New(d.cfg.Admin(nil), nil)
	err := server.Listen()
	server.Close()
	if err == nil {
		d.addOK(PartAdmin, "admin.listen", listen+" is free")
		return
	}

	if says := queryLeader(ctx, listen); says != "" {
		d.addOK(PartAdmin, "admin.listen", fmt.Sprintf("a relay already listens on %s (%s); another relay on this machine needs another address", listen, says))
		return
	}

	d.addError(PartAdmin, "admin.listen", err)
}

// queryLeader asks the relay at an address for its role, which needs no token. It returns
// "" if no relay answers.
func queryLeader(ctx context.Context, listen string) string {
	base, err := admin.BaseURL(listen)
	if err != nil {
		return ""
	}

	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // a relay answers at once
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(base, "/")+"/leader", nil)
	if err != nil {
		return ""
	}

	// Bypass a proxy of the environment.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	const most = 64
	body, _ := io.ReadAll(io.LimitReader(resp.Body, most)) // a partial body matches no role
	switch word := strings.TrimSpace(string(body)); word {
	case "leader", "standby":
		return word
	}

	return ""
}

// sessionHoldersQuery lists the sessions of a PostgreSQL server by holder.
const sessionHoldersQuery = "SELECT datname, usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC;"

// explainRefusedSession explains why a reachable server refused a session for another
// reason than the login. unreachable has the meaning of Finding.Unreachable.
func explainRefusedSession(f *store.Finding, err error) (unreachable, ok bool) {
	if problem, remedy, ok := mysqlstore.ExplainNoSession(err); ok {
		f.Text, f.Remedy = problem, remedy
		return true, true
	}

	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	if !errors.As(err, &connect) || !errors.As(connect, &pg) {
		return false, false
	}

	switch pg.Code {
	case "42704", "22023", "55P02": // undefined_object, invalid_parameter_value, cant_change_runtime_param
		f.Text = "server refuses a URL parameter: " + pg.Message
		f.Remedy = "fix or remove it in source.url (or source.stream-url): a parameter unknown to the relay is sent to the server as a setting"
		return false, true
	case "53300": // too_many_connections
		f.Text = "no connection left on the server: " + pg.Message
		f.Remedy = "-- as an administrator: lists the sessions by holder; end unused ones, or raise max_connections (or the CONNECTION LIMIT of the role or database, if the error names it)\n" + sessionHoldersQuery
		return true, true
	}

	return false, false
}
