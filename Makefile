# Everything a contributor needs. `make` lists the targets.

# Pinned; run from the module cache, so nothing is installed.
GOLANGCI = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULN   = golang.org/x/vuln/cmd/govulncheck@v1.9.0
HELM     ?= go run helm.sh/helm/v4/cmd/helm@v4.3.2
PROMTOOL ?= go run github.com/prometheus/prometheus/cmd/promtool@v0.316.0
SERVERS  = store/storetest/servers/servers.sh
SUITES   = \
	plain/cmd/internal/blackbox \
	race/others \
	servers/others \
	plain/capture/mysql \
	plain/store/mongo \
	plain/store/mysql \
	plain/capture/mongo \
	plain/dispatch/sink/kafka \
	plain/capture/postgres \
	plain/store/postgres \
	plain/dispatch/sink/rabbitmq \
	plain/dispatch/sink/nats \
	plain/dispatch/sink/flowcatalyst \
	plain/dispatch/sink/webhook \
	race/busiest \
	plain/store/sqlite \
	plain/capture/sqlite \
	plain/cmd/sluicebox \
	plain/cmd/internal/config \
	plain/cmd/internal/demobroker \
	plain/dispatch/sink/internal/template \
	plain/store/storetest/servers
OWN      = $(patsubst plain/%,./%,$(filter plain/%,$(SUITES)))
BUSIEST   = ./store/postgres ./store/mongo ./capture/postgres ./capture/mysql
# The packages whose tests use servers of store/storetest/servers.
WITHSERVERS = $$(go list -test -f '{{if not .ForTest}}{{$$p := .ImportPath}}{{range .Deps}}{{if eq . "github.com/sluicebox/sluicebox/store/storetest/servers"}}{{$$p}}{{"\n"}}{{end}}{{end}}{{end}}' ./... | sed -n 's/\.test$$//p')
NOTOWN    = grep -vxF "$$(go list $(OWN))"
# The packages with model tests.
MODELS    = $(sort $(dir $(shell grep -rl --include=*_test.go pgregory.net/rapid .)))
AT_ONCE ?= 2
# A program with the race detector sleeps for a second at its end, mostly for nothing.
export GORACE ?= atexit_sleep_ms=50
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZ     ?= ^Fuzz
FUZZTIME ?= 10s
FUZZPROCS ?= 1
N        ?= 20
DB       ?=
# make lint vets every package, so go test does not.
GOTEST   = go test -vet=off -trimpath -timeout 20m
comma     := ,
# Memory is collected rarely, because test programs are small.
RARELY   = GOGC=400
BENCHED   = $(or $(DB),pg15)
SPEEDPAGE = $(if $(filter pg%,$(BENCHED)),,-part $(BENCHED) -results deploy/speed-$(BENCHED).json -page deploy/speed-$(if $(filter mongo,$(BENCHED)),mongo,mysql).md)

.PHONY: help build quickstart test $(SUITES) scenarios raced raced/packages raced/models raced/blackbox short crash leader brokers faults lint vuln fuzz bench microbench docs alerts prometheus collector release chart apiserver clean have-go have-cc

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

build: have-go ## build bin/sluicebox
	CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/sluicebox ./cmd/sluicebox

quickstart: build ## build it and show it at work, with nothing to set up
	bin/sluicebox quickstart

# AT_ONCE suites run at a time, in the order of SUITES: the longest first, so that all end
# together, but those of PostgreSQL after blackbox: they keep transactions open, for which the new slot of
# a relay would wait. With three at once servers answer so late that tests fail. One suite alone, with its servers:
#
#	store/storetest/servers/servers.sh exec mysql mariadb -- make plain/store/mysql
#
# The race detector slows a program down some five times. So it is for the packages that need no server,
# race/others, and for the tests of databases with the most going on at once (raced.Only in TestMain),
# race/busiest. `make raced` runs everything with it, and belongs to each release. servers/others are
# the packages that use servers and have no suite of their own.
#
# Plain suites are compiled as the program and its image are, and share their packages. Packages that
# parse text, or start programs, in one goroutine are among them.
#
# A test of PostgreSQL runs on one version, and a scenario beside one server, the most important beside
# two; VERSIONS=all runs them on each, VERSIONS=mysql on that.
test: have-go have-cc ## run all tests beside real servers, those without servers with the race detector
	$(SERVERS) exec -- env SLUICEBOX_TEST_VERSIONS=$(VERSIONS) $(MAKE) --no-print-directory -k -j$(AT_ONCE) $(SUITES)

$(filter plain/%,$(SUITES)): plain/%:
	CGO_ENABLED=0 $(if $(filter store/% capture/%,$*),$(RARELY)) $(GOTEST) $(ARGS) ./$*

# Whether test servers crash, restart and elect as they should is shown by the suites that need it.
# make raced, and go test alone, run these tests too.
plain/store/storetest/servers: ARGS = -skip '^Test(Kafka|Standby|TLSAndHBA|MySQLTLS|Mongo(Elections|StepDownOfOne|OplogIsRolled|TLSAndAuth)|.*CrashRestart)$$'

race/busiest:
	$(RARELY) $(GOTEST) -race -p 2 $(BUSIEST)

race/others:
	$(RARELY) $(GOTEST) -race -p 2 $$(go list ./... | $(NOTOWN) | grep -vxF "$(WITHSERVERS)")

servers/others:
	CGO_ENABLED=0 $(GOTEST) -p 2 $$(echo "$(WITHSERVERS)" | $(NOTOWN))

# test leaves out the scenarios that take long and add little, which TestMain names.
scenarios: have-go ## run all scenarios of the built program beside real servers (before a release)
	$(SERVERS) exec -- env SLUICEBOX_TEST_VERSIONS=$(VERSIONS) SLUICEBOX_TEST_SCENARIOS=all CGO_ENABLED=0 \
		go test -vet=off -trimpath -timeout 90m ./cmd/internal/blackbox

# -run . runs also the tests that raced.Only leaves out. Of blackbox the busiest scenarios run: the
# others run the same program. The models search longer.
RACED = $(RARELY) $(GOTEST) -race -timeout 60m
raced: have-go have-cc ## run every package on all versions with the race detector, and of blackbox the busiest scenarios (before a release)
	$(SERVERS) exec -- env SLUICEBOX_TEST_VERSIONS=all $(MAKE) --no-print-directory -k raced/packages raced/models raced/blackbox

raced/packages:
	$(RACED) -p 2 -run . $$(go list ./... | grep -v '/blackbox$$')

raced/models:
	$(RACED) -run Model -count=1 $(MODELS) -rapid.checks 1000

raced/blackbox:
	$(RACED) ./cmd/internal/blackbox

short: have-go ## run the tests that need no server
	go test -short ./...

crash: have-go have-cc ## kill the relay N times (20) under load, and the server as often (DB=pg15,pg18,mysql,mariadb,mongo)
	$(SERVERS) exec -- env SLUICEBOX_TEST_VERSIONS=$(or $(DB),all) SLUICEBOX_TEST_CRASHES=$(N) go test -count=1 -v -timeout 60m \
		-run 'TestKilledUnderLoad|TestTheServerCrashes|TestAFastShutdown|TestMongoKilledUnderLoad|TestMongoThePrimary' ./cmd/internal/blackbox

leader: have-go ## kill, stop, freeze and cut off the leader of two relays N times (20) under load, and replace both (DB=pg15,pg18,mysql,mariadb,mongo)
	$(SERVERS) exec -- env SLUICEBOX_TEST_VERSIONS=$(or $(DB),all) SLUICEBOX_TEST_CRASHES=$(N) go test -count=1 -v -timeout 60m -parallel 1 \
		-run 'TestTwoRelays$$|TestARollingRestart|TestMongoTwoRelays' ./cmd/internal/blackbox

# SEED=0 draws a seed. RATE is in rows a second, EVERY=10s begins a fault every ten seconds, KINDS selects faults
# ("relay killed,network cut"; "A+B": both at once), and REPORT=deploy/faults.md writes the section of each database, also
# of a run that fails. DB="pg15 mysql" runs one after the other. BROKERS are further destinations (kafka,nats,rabbitmq).
faults: have-go ## run two relays under load and faults from SEED for MINUTES (5) on DB (pg15,pg18,mysql,mariadb,mongo,sqlite)
	@failed=; for db in $(or $(DB),pg15); do \
		$(SERVERS) exec $$([ $$db = sqlite ] || echo $$db) $(subst $(comma), ,$(or $(BROKERS),nats)) -- env SLUICEBOX_TEST_VERSIONS=$$db SLUICEBOX_TEST_BROKERS=$(BROKERS) SLUICEBOX_TEST_MINUTES=$(or $(MINUTES),5) SLUICEBOX_TEST_SEED=$(or $(SEED),0) \
			SLUICEBOX_TEST_RATE=$(RATE) SLUICEBOX_TEST_EVERY=$(EVERY) SLUICEBOX_TEST_FAULTS="$(KINDS)" SLUICEBOX_TEST_REPORT=$(if $(REPORT),$(abspath $(REPORT))) \
			go test -count=1 -v -timeout 24h -run 'TestFaults$$' ./cmd/internal/blackbox || failed="$$failed $$db"; \
	done; [ -z "$$failed" ] || { echo "faults: failed:$$failed" >&2; exit 1; }

brokers: have-go ## kill brokers of a Kafka cluster of three N times (20) under a feeder and its shards, and force an unclean election
	$(SERVERS) exec pg15 kafka -- env SLUICEBOX_TEST_VERSIONS=pg15 SLUICEBOX_TEST_CRASHES=$(N) go test -count=1 -v -run 'TestBrokers$$' ./capture/kafka

lint: have-go ## check the format and look for mistakes
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || { echo "gofmt -w these files:" $$unformatted >&2; exit 1; }
	go run $(GOLANGCI) run ./... # with govet

# VULNDB=file:///… where the public database cannot be reached.
vuln: have-go ## look for known vulnerabilities in what the program calls
	@out=$$(go run $(GOVULN) $(if $(VULNDB),-db $(VULNDB)) ./... 2>&1); code=$$?; echo "$$out"; \
	case "$$out" in *"fetching vulnerabilities"*) \
		echo "The vulnerability database cannot be reached: nothing was checked. Name a copy of it: make vuln VULNDB=file:///…" >&2;; esac; exit $$code

# FUZZ=Body runs those whose name has it.
fuzz: have-go ## run every fuzz test for FUZZTIME (10s) in FUZZPROCS processes (1), and print a line for each
	.ci/fuzz '$(FUZZ)' $(FUZZTIME) $(FUZZPROCS)

# Servers with redo logs of their default sizes: those of the tests are small.
# DB=mysql and DB=mariadb share a page.
bench: build ## measure the relay beside the floor on DB (pg15, mysql, mariadb, mongo) and write deploy/speed.md, speed-mysql.md or speed-mongo.md (about an hour, on an idle machine; ROUNDS=1 for a quick look, ONLY=drain for one entry, CLAIMS=late, PEER=PROGRAM to measure beside)
	SLUICEBOX_TEST_DATA=/var/tmp/sluicebox-bench SLUICEBOX_TEST_PG15_OPTIONS='-c shared_preload_libraries=pg_stat_statements' \
	SLUICEBOX_TEST_MYSQL_OPTIONS=--innodb-redo-log-capacity=100M SLUICEBOX_TEST_MARIADB_OPTIONS=--innodb-log-file-size=96M \
		$(SERVERS) exec $(BENCHED) -- sh -c 'go run ./cmd/internal/bench/speedpage -version "$(VERSION)" -rounds $(or $(ROUNDS),0) -only "$(ONLY)" -claims "$(CLAIMS)" -peer "$(PEER)" $(SPEEDPAGE) \
		-source "$$SLUICEBOX_TEST_$(shell echo $(BENCHED) | tr a-z A-Z)_URL"'

microbench: have-go ## run the Go benchmarks beside real servers
	$(SERVERS) exec -- go test -run '^$$' -bench . -benchmem ./...

docs: build ## write deploy/configuration.md, the reference of all keys and layouts
	bin/sluicebox config docs > deploy/configuration.md

alerts: have-go ## check deploy/prometheus with promtool (PROMTOOL=promtool for an installed one)
	$(PROMTOOL) check rules deploy/prometheus/rules.yml
	$(PROMTOOL) test rules deploy/prometheus/rules_test.yml

# TARGETS="linux/amd64 darwin/arm64" makes fewer.
release: have-go ## make the archives, Debian packages and SBOM of the checked-out commit in bin/release, and check them
	deploy/release/release.sh $(TARGETS)
	deploy/release/check.sh

# Kafka has the topic whose partitions become more.
prometheus: have-go ## raise every alert beside a real Prometheus, and evaluate the dashboard (two minutes)
	$(SERVERS) exec pg15 kafka prometheus -- go test -count=1 -v -parallel 6 -run TestEveryAlertFires ./cmd/internal/blackbox

collector: have-go ## pass the traces of a relay through a real OpenTelemetry Collector
	cd cmd/internal/tracing/collector && go build -o ../../../../bin/collector .
	$(SERVERS) exec pg18 -- env SLUICEBOX_TEST_COLLECTOR=$(abspath bin/collector) go test -count=1 -v -run TestTraceFrom ./cmd/internal/blackbox

CHART     = deploy/helm/sluicebox
# Of what the manifests are made from; a test compares it.
CHARTSUM  = $$(LC_ALL=C find $(CHART) deploy/kubernetes/values.yaml -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -d ' ' -f 1)

chart: build ## check the Helm chart and write deploy/kubernetes/sluicebox.yaml from it (HELM=helm for an installed one)
	cd deploy/helm/check && go build -o ../../../bin/check-chart .
	for values in deploy/kubernetes/values.yaml deploy/helm/check/all.yaml; do \
		$(HELM) lint --strict $(CHART) -f $$values && \
		$(HELM) template sluicebox $(CHART) -n sluicebox -f $$values >bin/manifests.yaml && \
		bin/check-chart bin/sluicebox <bin/manifests.yaml || exit 1; \
	done
	$(HELM) template sluicebox $(CHART) -n sluicebox -f deploy/kubernetes/values.yaml >bin/manifests.yaml
	{ echo "# Made by make chart from the chart of sum $(CHARTSUM): do not edit."; \
		sed '/^# Source:/d; /managed-by: Helm/d; /helm.sh\/chart:/d' bin/manifests.yaml; } >deploy/kubernetes/sluicebox.yaml

apiserver: chart ## install the chart and the manifests on a real Kubernetes API server (its build: 4 minutes, 3 GB)
	cd deploy/helm/apiserver && go build -ldflags "-X k8s.io/component-base/version.gitVersion=$$(go list -m -f {{.Version}} k8s.io/kubernetes)" -o ../../../bin/apiserver .
	$(HELM) template sluicebox $(CHART) -n sluicebox -f deploy/helm/check/all.yaml >bin/manifests.yaml
	bin/apiserver -apply deploy/kubernetes/sluicebox.yaml -apply bin/manifests.yaml sh -ec '\
		$(HELM) install shop $(CHART) -n sluicebox -f deploy/kubernetes/values.yaml; \
		$(HELM) upgrade shop $(CHART) -n sluicebox -f deploy/kubernetes/values.yaml --set replicas=3'

clean: ## remove what build made
	rm -rf bin

have-go:
	@command -v go >/dev/null || { echo "Go is needed, the version that go.mod names or later" >&2; exit 1; }

# The race detector needs a C compiler and the C library's headers.
have-cc:
	@compiles() { echo '#include <stdlib.h>' | $$(go env CC) -x c -fsyntax-only - 2>/dev/null; }; \
	if compiles; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing gcc and libc6-dev for the race detector"; \
		apt-get -qq -o DPkg::Lock::Timeout=300 update; \
		DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends install gcc libc6-dev >/dev/null; \
	fi; \
	compiles || { echo "The race detector needs a C compiler: install the Debian packages gcc and libc6-dev" >&2; exit 1; }
