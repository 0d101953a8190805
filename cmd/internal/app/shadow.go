package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/notify"
	"github.com/sluicebox/sluicebox/cmd/internal/shadow"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Shadow watches the outboxes until the context ends, and returns its findings. It needs no
// leadership, claims, writes and sends nothing, and opens no sink. Its error is nil after the end of
// the context; otherwise as that of Run.
func Shadow(ctx context.Context, o Options) (*shadow.Report, error) {
	options, err := o.Config.Relay("")
	if err != nil {
		return nil, err
	}
	p := &shadowProgram{cfg: o.Config, version: o.Version, startedAt: time.Now()}
	if p.shadow, err = newShadow(o, options.Database); err != nil {
		return nil, err
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newShadowMetrics(p.shadow))
	stopAdmin := func() {}
	if o.Config.Settings.Admin.Listen != "" {
		cfg := o.Config.Admin(reg)
		cfg.Log, cfg.Report = o.Log, p
		server := admin.New(cfg, p)
		if err := server.Listen(); err != nil {
			return nil, err
		}
		stopAdmin = inBackground(context.WithoutCancel(ctx), func(ctx context.Context) { _ = server.Run(ctx) })
	}
	end, err := supervise(ctx, o.Log, notify.Service{Ready: p.working, Status: p.summary, Ping: func() { p.shadow.Watching() }})
	if err == nil {
		err = p.shadow.Run(ctx)
		end()
	}
	stopAdmin()
	if ctx.Err() != nil {
		err = nil
	}
	report := p.shadow.Report()
	return &report, err
}

// newShadow returns the shadow of a configuration.
func newShadow(o Options, db sluicebox.Database) (*shadow.Shadow, error) {
	s, outboxes := &o.Config.Settings, o.Config.Outboxes()
	unordered := map[string]bool{}
	for _, box := range s.Outboxes {
		unordered[box.Name] = box.Sink != "" && s.Sinks[box.Sink].Ungrouped == dispatch.Parallel
	}
	return shadow.New(shadow.Config{
		Outboxes: outboxes, Interval: s.Shadow.ReportInterval, Passes: db.Unreachable, Log: o.Log,
		Limits: shadow.Limits{StuckAfter: s.Shadow.StuckAfter, LostAfter: s.Shadow.LostAfter, MaxRows: s.Shadow.MaxRows, Unordered: unordered},
		Open: func() (shadow.Stream, error) {
			src, err := db.Stream(capture.Settings{Name: s.Name, Outboxes: outboxes})
			if err != nil {
				return nil, err
			}
			if of, ok := src.(shadow.Stream); ok {
				return of, nil
			}
			src.Close()
			return nil, &store.SetupError{
				Problem: "shadow: this database has no log of updates that can be read without writing",
				Remedy:  "PostgreSQL, MySQL, MariaDB and MongoDB have one",
			}
		},
	})
}

// shadowProgram answers the admin endpoints of a shadow.
type shadowProgram struct {
	cfg       *config.Config
	version   string
	startedAt time.Time
	shadow    *shadow.Shadow
}

func (p *shadowProgram) working() bool {
	_, watching := p.shadow.Watching()
	return watching
}

// summary returns the state in one line.
func (p *shadowProgram) summary() string {
	if problem, watching := p.shadow.Watching(); !watching {
		return "shadow; not watching: " + problem
	}
	return "shadow; watching"
}

// Checks implements admin.Status.
func (p *shadowProgram) Checks() []sluicebox.Check {
	problem, watching := p.shadow.Watching()
	return []sluicebox.Check{{Name: "source", OK: watching, Detail: problem}}
}

// Report implements admin.Reporter.
func (p *shadowProgram) Report(context.Context, bool) admin.RelayStatus {
	report := p.shadow.Report()
	return admin.RelayStatus{
		Name: p.cfg.Settings.Name, Version: p.version, Holder: sluicebox.HolderName(), StartedAt: p.startedAt, Uptime: time.Since(p.startedAt).Seconds(),
		SourceDetail: "shadow: watching, nothing is sent", Sinks: []admin.SinkStatus{}, Routes: []admin.Route{}, Lanes: []dispatch.LaneInfo{},
		Shadow: &report,
	}
}

// shadowMetrics are the metrics of a shadow, read at each scrape.
type shadowMetrics struct {
	shadow                                                 *shadow.Shadow
	watching, interruptions, rows, findings, open, overdue *prometheus.Desc
	latency                                                *prometheus.Desc
}

func newShadowMetrics(of *shadow.Shadow) *shadowMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(namespace+"_shadow_"+name, help, labels, nil)
	}
	return &shadowMetrics{
		shadow:        of,
		watching:      desc("watching", "Whether the shadow follows the log (1 = it does)."),
		interruptions: desc("interruptions_total", "Times that the log was lost and changes were missed."),
		rows:          desc("rows_total", "Rows of the watched processor, by event.", "outbox", "event"),
		findings:      desc("findings_total", "Rows with which the watched processor failed, by finding.", "outbox", "finding"),
		open:          desc("open_rows", "Unfinished rows that are followed.", "outbox"),
		overdue:       desc("overdue_rows", "Rows that are unfinished for too long now, by finding.", "outbox", "finding"),
		latency:       desc("latency_seconds", "Time from the commit of a row until it was captured, taken or delivered.", "outbox", "until"),
	}
}

// Describe implements prometheus.Collector.
func (m *shadowMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.watching, m.interruptions, m.rows, m.findings, m.open, m.overdue, m.latency} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *shadowMetrics) Collect(to chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	watching := 0
	if _, is := m.shadow.Watching(); is {
		watching = 1
	}
	report := m.shadow.Report()
	gauge(m.watching, watching)
	counter(m.interruptions, report.Interruptions)
	for i := range report.Outboxes {
		o := &report.Outboxes[i]
		for event, n := range map[string]int{
			"seen": o.Seen, "lane_free": o.LaneFree, "taken": o.Taken, "delivered": o.Delivered, "failed": o.Failed, "retried": o.Retried, "requeued": o.Requeued,
			"unknown": o.Unknown, "untracked": o.Untracked, "unidentified": o.Unidentified, "forgotten": o.Forgotten,
		} {
			counter(m.rows, n, o.Outbox, event)
		}
		for finding, n := range map[string]int{
			"out_of_order": o.OutOfOrder, "stuck": o.Stuck, "unreached": o.Unreached, "deleted": o.Deleted, "returned": o.Returned,
		} {
			counter(m.findings, n, o.Outbox, finding)
		}
		gauge(m.open, o.Open, o.Outbox)
		gauge(m.overdue, o.StuckNow, o.Outbox, "stuck")
		gauge(m.overdue, o.UnreachedNow, o.Outbox, "unreached")
		for until, l := range map[string]shadow.Latency{"captured": o.Captured, "taken": o.TakenLatency, "delivered": o.DeliveredLatency} {
			to <- prometheus.MustNewConstSummary(m.latency, uint64(l.Rows), l.Sum, map[float64]float64{.5: l.P50, .99: l.P99, 1: l.Max}, o.Outbox, until) //nolint:gosec // never negative
		}
	}
}
