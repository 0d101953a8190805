package blackbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// orderProcess is started by a message. One of its branches is a job at once, the other is one after a
// second message with the order's id as correlation key.
const orderProcess = `<?xml version="1.0" encoding="UTF-8"?>
<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL" xmlns:zeebe="http://camunda.org/schema/zeebe/1.0" id="d" targetNamespace="http://bpmn.io/schema/bpmn">
  <bpmn:message id="placed" name="Message_OrderPlaced" />
  <bpmn:message id="paid" name="Message_OrderPaid">
    <bpmn:extensionElements><zeebe:subscription correlationKey="=orderId" /></bpmn:extensionElements>
  </bpmn:message>
  <bpmn:process id="order" isExecutable="true">
    <bpmn:startEvent id="start"><bpmn:outgoing>f1</bpmn:outgoing><bpmn:messageEventDefinition id="m1" messageRef="placed" /></bpmn:startEvent>
    <bpmn:parallelGateway id="both"><bpmn:incoming>f1</bpmn:incoming><bpmn:outgoing>f2</bpmn:outgoing><bpmn:outgoing>f3</bpmn:outgoing></bpmn:parallelGateway>
    <bpmn:serviceTask id="pack"><bpmn:extensionElements><zeebe:taskDefinition type="pack" /></bpmn:extensionElements><bpmn:incoming>f2</bpmn:incoming></bpmn:serviceTask>
    <bpmn:intermediateCatchEvent id="wait"><bpmn:incoming>f3</bpmn:incoming><bpmn:outgoing>f4</bpmn:outgoing><bpmn:messageEventDefinition id="m2" messageRef="paid" /></bpmn:intermediateCatchEvent>
    <bpmn:serviceTask id="ship"><bpmn:extensionElements><zeebe:taskDefinition type="ship" /></bpmn:extensionElements><bpmn:incoming>f4</bpmn:incoming></bpmn:serviceTask>
    <bpmn:sequenceFlow id="f1" sourceRef="start" targetRef="both" />
    <bpmn:sequenceFlow id="f2" sourceRef="both" targetRef="pack" />
    <bpmn:sequenceFlow id="f3" sourceRef="both" targetRef="wait" />
    <bpmn:sequenceFlow id="f4" sourceRef="wait" targetRef="ship" />
  </bpmn:process>
</bpmn:definitions>`

const camundaConfig = `
name: %s
source: {url: '%s'}
outboxes: [{table: process_message, layout: zeebe, sink: engine, retention: 7d}]
sinks: {engine: {type: camunda, url: '%s', time-to-live: 1h}}
admin: {listen: %s}
`

// Messages of the table of the layout zeebe start processes of a real engine and continue them, each
// once, while the relay is killed. The engine is fetched by its name only:
//
//	SLUICEBOX_TEST_CRASHES=10 store/storetest/servers/servers.sh exec pg15 zeebe -- go test -v -run TestCamundaEngine ./cmd/internal/blackbox
//
// There are 100 messages for each kill: one of each of 50 orders starts a process, the other continues
// it.
func TestCamundaEngine(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		engine := servers.Zeebe(s.t)
		engine.Deploy("order.bpmn", orderProcess)
		initOutbox(s.t, "zeebe", s.database)
		s.config = fmt.Sprintf(camundaConfig, nameFor(s.database), s.database, engine.URL, adminKey)
		if d, text, code := doctor(s.t, s.config); code != 0 {
			s.t.Errorf("doctor ends with %d: %s\n%+v", code, text, d)
		}
		const each = 50
		kills, skipped := crashes(s.t, 1), 0.0
		r := s.run()
		for kill := range kills {
			s.placeOrders(kill*each, each)
			within(s.t, testTimeout, func() string { // a request is surely in flight
				if count(s.t, s.conn, "SELECT count(*) FROM process_message WHERE status = 'SENT'") <= 2*each*kill {
					return "no message is SENT"
				}
				return ""
			})
			r.kill()
			r = s.run()
			awaitZero(s.t, "messages are not SENT", func() int {
				return count(s.t, s.conn, "SELECT count(*) FROM process_message WHERE status <> 'SENT' OR retry_count > 0")
			})
			skipped += r.skipped()
		}
		for _, job := range []string{"pack", "ship"} {
			s.wantJobs(engine, job, kills*each)
		}
		s.t.Logf("%d messages under %d kills; Camunda dropped %.0f repetitions", 2*each*kills, kills, skipped)
		expectStop(s.t, r)
	})
}

// skipped returns how many rows the receiver had already. The metric is there once it has had one.
func (r *relay) skipped() float64 {
	r.t.Helper()
	const skipped = `sluicebox_rows_skipped_total{kind="message",sink="engine"}`
	if _, body := r.get("/metrics"); !strings.Contains(body, skipped) {
		return 0
	}
	return r.metric(skipped)
}

// placeOrders writes two messages of each order, in one transaction.
func (s *scene) placeOrders(first, n int) {
	s.t.Helper()
	text := "BEGIN;\n"
	for _, name := range []string{"Message_OrderPlaced", "Message_OrderPaid"} {
		for i := first; i < first+n; i++ {
			text += fmt.Sprintf("INSERT INTO process_message (message_id, message_name, correlation_id, variables, created_at, updated_at, retry_count, status)"+
				" VALUES ('%s', '%s', 'order-%d', '{\"orderId\": \"order-%d\"}', clock_timestamp(), now(), 0, 'PENDING');\n", uuid.NewString(), name, i, i)
		}
	}
	s.exec(text + "COMMIT")
}

// wantJobs waits until each of n orders has a job of a type, and fails the test if one has two.
func (s *scene) wantJobs(engine *servers.ZeebeEngine, job string, n int) {
	s.t.Helper()
	jobs := map[string]int{}
	within(s.t, testTimeout, func() string {
		for _, text := range engine.Jobs(job) {
			var variables struct {
				OrderID string `json:"orderId"`
			}
			if err := json.Unmarshal([]byte(text), &variables); err != nil {
				s.t.Errorf("variables %q: %v", text, err)
			}
			jobs[variables.OrderID]++
		}
		if len(jobs) < n {
			return fmt.Sprintf("%d of %d orders have a job %s", len(jobs), n, job)
		}
		return ""
	})
	for order, times := range jobs {
		if times != 1 || len(jobs) != n {
			s.t.Errorf("%s has %d jobs %s; %d orders, want %d", order, times, job, len(jobs), n)
		}
	}
}
