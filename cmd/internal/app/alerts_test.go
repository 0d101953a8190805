package app

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch"
)

// rule is an alert or a recording rule of deploy/prometheus/rules.yml.
type rule struct {
	Alert, Record, Expr string
	Labels, Annotations map[string]string
}

// deployFile reads a file of deploy.
func deployFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func rules(t *testing.T) (list []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(deployFile(t, "prometheus/rules.yml"), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}
	if len(list) == 0 {
		t.Fatal("no rules")
	}
	return list
}

// samples returns the names of all samples that the relay's registry knows, whether it has
// values yet or not.
func samples(t *testing.T) map[string]bool {
	t.Helper()
	reg, m := newTestMetrics(t)
	m.sink("s")
	newIngestMetrics(reg, nil)
	newReloader(reg, nil, Reload{})
	reg.MustRegister(newRouteMetrics(func() ([]sluicebox.RouteStatus, error) { return nil, nil }))
	known := map[string]bool{"up": true}
	described := make(chan *prometheus.Desc)
	go func() { reg.Describe(described); close(described) }()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range described {
		found := name.FindStringSubmatch(d.String())
		known[found[1]] = true
	}
	// The kind of a metric is known only once it has a value.
	m.Captured("o", 1)
	m.sink("s").SetStats(dispatch.Stats{Oldest: time.Now(), Lanes: map[string]int{"ready": 1}})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetMetric()[0].GetHistogram() != nil {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[f.GetName()+suffix] = true
			}
		}
	}
	return known
}

// expectKnown checks each metric that an expression names.
func expectKnown(t *testing.T, where, expr string, known map[string]bool) {
	t.Helper()
	names := regexp.MustCompile(`\b(relay_sink:)?sluicebox_\w+(:\w+)?`).FindAllString(expr, -1)
	for _, name := range names {
		if !known[name] {
			t.Errorf("%s: the relay has no metric %s", where, name)
		}
	}
	if len(names) == 0 && !strings.Contains(expr, "up{") && !strings.Contains(expr, "process_") && !strings.Contains(expr, "go_") {
		t.Errorf("%s: the expression names no metric: %s", where, expr)
	}
}

// Each rule names metrics of the relay. Each alert has a severity, a summary and a section in
// alerts.md, and no section is left of an alert that is gone.
func TestAlertsNameKnownMetricsAndHaveASection(t *testing.T) {
	known, page := samples(t), string(deployFile(t, "alerts.md"))
	alerts := map[string]bool{}
	for _, r := range rules(t) {
		expectKnown(t, r.Alert+r.Record, r.Expr, known)
		if r.Alert == "" {
			known[r.Record] = true
			continue
		}
		alerts[r.Alert] = true
		if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", r.Alert)
		}
		if want := "/deploy/alerts.md#" + strings.ToLower(r.Alert); !strings.HasSuffix(r.Annotations["runbook_url"], want) {
			t.Errorf("%s: runbook %q, want …%s", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !strings.Contains(page, "\n## "+r.Alert+"\n") {
			t.Errorf("alerts.md has no section %s", r.Alert)
		}
	}
	for _, section := range regexp.MustCompile(`(?m)^## (\S+)$`).FindAllStringSubmatch(page, -1) {
		if !alerts[section[1]] {
			t.Errorf("alerts.md explains %s, which no rule raises", section[1])
		}
	}
}

// Each query of the dashboard names metrics of the relay or of its process.
func TestDashboardNamesKnownMetrics(t *testing.T) {
	known := samples(t)
	for _, r := range rules(t) {
		known[r.Record] = r.Record != ""
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(deployFile(t, "grafana/sluicebox.json"), &board); err != nil {
		t.Fatal(err)
	}
	queries := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			queries++
			expectKnown(t, p.Title, target.Expr, known)
		}
	}
	if queries == 0 {
		t.Error("the dashboard has no query")
	}
}

// The chart renders the plain manifests: `make chart` writes the sum of the chart's
// files into them.
func TestManifestsAreOfTheChart(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	var files []string
	err := filepath.WalkDir(filepath.Join(root, "deploy", "helm", "sluicebox"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, filepath.Join(root, "deploy", "kubernetes", "values.yaml"))
	slices.Sort(files)
	sum := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = sum.Write(text)
	}
	first, _, _ := strings.Cut(string(deployFile(t, "kubernetes/sluicebox.yaml")), "\n")
	if want := hex.EncodeToString(sum.Sum(nil)); !strings.Contains(first, want) {
		t.Errorf("deploy/kubernetes/sluicebox.yaml is of another chart; run make chart\n%s, want sum %s", first, want)
	}
}
