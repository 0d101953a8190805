package blackbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// prometheusVariable is the folder of the program prometheus.
const prometheusVariable = "SLUICEBOX_TEST_PROMETHEUS_BIN"

// prometheusConfig scrapes the relays of a folder of target files.
const prometheusConfig = `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - job_name: sluicebox
    file_sd_configs: [{files: [%q], refresh_interval: 1s}]
`

// prometheus is a server that scrapes relays.
type prometheus struct {
	t       *testing.T
	url     string
	targets string // folder of target files

	mu    sync.Mutex
	files int
}

// startPrometheus starts a server with these rules.
func startPrometheus(t *testing.T, rules string) *prometheus {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	p := &prometheus{t: t, url: "http://" + address, targets: filepath.Join(dir, "targets")}
	if err := os.Mkdir(p.targets, 0o700); err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) string {
		writeFile(t, filepath.Join(dir, name), text)
		return filepath.Join(dir, name)
	}
	config := file("prometheus.yml", fmt.Sprintf(prometheusConfig, file("rules.yml", rules), filepath.Join(p.targets, "*.json")))
	startProgram(t, p.url+"/-/ready", filepath.Join(os.Getenv(prometheusVariable), "prometheus"), "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	return p
}

// startProgram starts a server that ends with the test, and waits until its page ready answers 200.
func startProgram(t *testing.T, ready, program string, arguments ...string) {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.Command(program, arguments...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(program), output.String())
		}
	})
	within(t, testTimeout, func() string {
		resp, err := http.Get(ready)
		if err != nil {
			return err.Error()
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return resp.Status
		}
		return ""
	})
}

// series is a series of an answer, with its value at an instant or its values over a range.
type series struct {
	Metric map[string]string
	Value  []any
	Values [][]any
}

// query evaluates an expression now, or over the range of these parameters.
func (p *prometheus) query(t *testing.T, expr string, parameters ...string) []series {
	t.Helper()
	form, path := url.Values{"query": {expr}}, "/api/v1/query"
	for i := 0; i < len(parameters); i += 2 {
		form.Set(parameters[i], parameters[i+1])
		path = "/api/v1/query_range"
	}
	resp, err := http.PostForm(p.url+path, form)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Error string
		Data  struct{ Result []series }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Error != "" {
		t.Fatalf("query %s: %v %s", expr, err, answer.Error)
	}
	return answer.Data.Result
}

// scrape adds relays of one name, and waits for the first sample of each.
func (p *prometheus) scrape(t *testing.T, name string, relays ...*relay) {
	t.Helper()
	var addresses []string
	for _, r := range relays {
		addresses = append(addresses, strings.TrimPrefix(r.admin, "http://"))
	}
	text, err := json.Marshal([]any{map[string]any{"targets": addresses, "labels": map[string]string{"relay": name}}})
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.files++
	file := filepath.Join(p.targets, fmt.Sprint(p.files))
	p.mu.Unlock()
	writeFile(t, file, string(text))
	if err := os.Rename(file, file+".json"); err != nil {
		t.Fatal(err)
	}
	within(t, testTimeout, func() string {
		if got := p.query(t, fmt.Sprintf("up{relay=%q} == 1", name)); len(got) < len(relays) {
			return fmt.Sprintf("%d of %d relays are scraped", len(got), len(relays))
		}
		return ""
	})
}

// alerts returns the alerts that have fired for relays that match a pattern, as name and relay.
func (p *prometheus) alerts(t *testing.T, pattern string) map[[2]string]bool {
	t.Helper()
	fired := map[[2]string]bool{}
	for _, s := range p.query(t, fmt.Sprintf(`max_over_time(ALERTS{alertstate="firing", relay=~%q}[1h])`, pattern)) {
		fired[[2]string{s.Metric["alertname"], s.Metric["relay"]}] = true
	}
	return fired
}

// await waits until an alert has fired for a relay, and returns its labels and how long it took.
func (p *prometheus) await(t *testing.T, alert, name string) {
	t.Helper()
	began := time.Now()
	within(t, testTimeout, func() string {
		if !p.alerts(t, name)[[2]string{alert, name}] {
			return fmt.Sprintf("%s has not fired", alert)
		}
		return ""
	})
	t.Logf("%s fired after %s", alert, time.Since(began).Round(100*time.Millisecond))
}
