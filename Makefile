# The tasks of this repository. `make help` lists them.
#
# Needed: Go (the version go.mod names), a C compiler (SQLite and the race
# detector are built with cgo), make and bash. `make deps-test` adds redis-server, Postgres, PgBouncer,
# promtool and Chromium.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A silently downloaded toolchain would test something else than what is
# shipped, so the installed one is used or the build fails.
export GOTOOLCHAIN := local
# The SQLite driver is C; without cgo it compiles and then fails at run time.
export CGO_ENABLED := 1

GO ?= go
ARGS ?=

# Tools are pinned by version and checked against the public checksum database.
# They are installed as programs of their own, not as requirements of go.mod,
# so that each is built with the dependencies it was released with. The name
# holds both versions: a new tool or a new Go builds it again, nothing else does.
GOLANGCI_LINT_VERSION := v2.15.0
GOVULNCHECK_VERSION := v1.8.0
BENCHSTAT_VERSION := v0.0.0-20260908200009-22c9c6c9d4da
TOOLS := $(CURDIR)/.cache/bin
GO_VERSION = $(shell $(GO) env GOVERSION)
GOLANGCI_LINT = $(TOOLS)/golangci-lint-$(GOLANGCI_LINT_VERSION)-$(GO_VERSION)
GOVULNCHECK = $(TOOLS)/govulncheck-$(GOVULNCHECK_VERSION)-$(GO_VERSION)
BENCHSTAT = $(TOOLS)/benchstat-$(BENCHSTAT_VERSION)-$(GO_VERSION)

COVER := .cache/cover
ACCEPT := ../shared/accept/accept.py

# The limit for one package's tests: a hang then ends with every goroutine's stack.
TEST_TIMEOUT ?= 15m

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  ARGS="..." is passed on to run, test, test-postgres, test-long, test-short, fuzz, bench, soak, chaos, loadtest, accept and contract.'

# The newest tag. Without one the program reports the version that Go derives from the
# repository; see flashsale --version.
VERSION ?= $(shell git describe --tags --dirty 2>/dev/null)
# Set here as well, because the go command records none with -buildvcs=false or in a worktree.
REVISION ?= $(shell git describe --always --dirty=-modified --abbrev=40 --exclude '*' 2>/dev/null)
LDFLAGS = $(if $(VERSION),-X main.version=$(VERSION)) $(if $(REVISION),-X main.revision=$(REVISION))

.PHONY: build
build: ## Build bin/flashsale (VERSION=v1.2.3 overrides the version it reports)
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/flashsale ./cmd/flashsale

.PHONY: run
run: build ## Build and start the service with embedded engines
	./bin/flashsale $(ARGS)

# CI=true turns a missing engine from a skipped test into a failed one. Vetting is the
# linter's. Without the race detector: its build of everything, SQLite included, would
# double the time, and test-long runs the same tests with it.
TEST = CI=true $(GO) test -vet=off -shuffle=on -timeout $(TEST_TIMEOUT)

.PHONY: test
test: deps-test ## Run every test but the long ones, on every engine, in random order
	$(TEST) $(ARGS) ./...
	cd bench && $(TEST) $(ARGS) ./...

# Everything once more, with the race detector and the long tests: a superset of test.
# One package after the other (-p 1): with the detector each keeps all processors busy.
.PHONY: test-long
test-long: deps-test ## Run every test, the long ones too, with the race detector
	@# With -p 1 the compiler works on one package at a time, too; so it comes first.
	$(GO) build -race ./...
	FLASHSALE_TEST_LONG=1 $(TEST) -race -p 1 $(ARGS) ./...
	cd bench && $(TEST) -race ./...

# Each package has its own server. The tests of processes start several programs per test.
.PHONY: test-postgres
test-postgres: deps deps-postgres ## Run the tests of the database on Postgres instead of SQLite
	FLASHSALE_TEST_DATABASE=postgres $(TEST) -p 2 $(ARGS) ./order/... ./migrations/... ./cmd/flashsale

.PHONY: test-stress
test-stress: deps-test ## Run each package's tests COUNT times (20) beside 8 busy processes (PKG chooses)
	GO="$(GO)" .ci/stress.sh $(PKG)

.PHONY: test-short
test-short: ## Run the quick tests on the engines that are installed
	$(GO) test -short -shuffle=on -timeout $(TEST_TIMEOUT) $(ARGS) ./...
	cd bench && $(GO) test -short -shuffle=on -timeout $(TEST_TIMEOUT) $(ARGS) ./...

.PHONY: fuzz
fuzz: ## Fuzz every parser of untrusted input, each target for FUZZTIME (30s)
	GO="$(GO)" .ci/fuzz.sh $(ARGS)

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run the linters of .golangci.yml, and check the format and the scripts
	for script in .ci/run .ci/*.sh; do bash -n "$$script"; done
	$(GOLANGCI_LINT) run ./...
	cd bench && $(GOLANGCI_LINT) run --config ../.golangci.yml ./...

.PHONY: prose
prose: ## List constructions that make English hard to read, and count them per 1,000 words
	$(GO) run ./internal/prose $(ARGS)

# The generator's version is in client/client.go. `go generate` downloads it where it is missing.
.PHONY: generate
generate: ## Generate the Go client from openapi.yaml
	$(GO) generate ./client

.PHONY: generate-check
generate-check: ## Generate the Go client again and fail if it was not current
	@before=$$(sha256sum client/client.gen.go client/generated.sha256); $(GO) generate ./client; \
	  if [[ $$before != $$(sha256sum client/client.gen.go client/generated.sha256) ]]; then \
	    echo 'client/client.gen.go was not current; it is now' >&2; exit 1; \
	  fi

# The files of deploy for Docker, Compose and Kubernetes, against a program that it builds.
.PHONY: deploy-check
deploy-check: deps $(GOLANGCI_LINT) ## Check the deployment files against the program
	@.ci/deps.sh prometheus
	cd deploy/check && $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	cd deploy/check && $(TEST) -count=1 $(ARGS) ./...

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the Go files
	$(GOLANGCI_LINT) fmt ./...

# Run from here and not from bench/, so that paths in ARGS mean the same as elsewhere.
BENCH = $(GO) build -C bench -o $(CURDIR)/bin/bench-service ./service && ./bin/bench-service

.PHONY: bench
bench: deps ## Measure the speed ratios (ARGS: options of bench/service)
	$(BENCH) $(ARGS)

.PHONY: soak
soak: deps ## Sell one item at full load for minutes and print a row per minute (ARGS: -duration, -orders, ...)
	$(BENCH) soak $(ARGS)

# Which benchmarks those are, and how long they run: .ci/bench-micro.sh.
.PHONY: bench-micro
bench-micro: deps $(BENCHSTAT) ## Measure functions of the hot path and report changes against bench/micro/baseline.txt
	GO="$(GO)" BENCHSTAT="$(BENCHSTAT)" .ci/bench-micro.sh

.PHONY: bench-micro-baseline
bench-micro-baseline: deps ## Replace that baseline with a new measurement; nothing else should run
	GO="$(GO)" .ci/bench-micro.sh baseline

.PHONY: bench-lock
bench-lock: deps ## Compare the lock with other libraries (ARGS: options of bench/lock)
	cd bench && $(GO) run ./lock $(ARGS)

.PHONY: bench-queue
bench-queue: deps ## Compare the queue with asynq (ARGS: options of bench/queue)
	cd bench && $(GO) run ./queue $(ARGS)

# Run from here and not from bench/, like bench. Without Postgres its contender is skipped, and
# the output says why.
.PHONY: bench-peers
bench-peers: deps ## Compare the service with other ways to build one, under load and kills (ARGS: options of bench/peers)
	@.ci/deps.sh postgresql || echo 'Postgres cannot be installed; its contender will be skipped' >&2
	$(GO) build -C bench -o $(CURDIR)/bin/bench-peers ./peers && ./bin/bench-peers $(ARGS)

# One fault after the other: each has the machine to itself. SEED repeats a schedule.
CHAOS = CI=true $(GO) test -tags chaos -count=1 -timeout 60m -v -run '^Test((Plan|Judge)_.*|Faults)$$$(if $(FAULT),/^($(FAULT))$$)' ./internal/verify/chaos \
	-args $(if $(SEED),-seed=$(SEED)) $(if $(DATABASE),-db=$(DATABASE)) $(ARGS)

.PHONY: chaos
chaos: deps ## Run the fault suite, each fault once (SEED=n repeats a run, FAULT='F1|F8' chooses, DATABASE=postgres)
	$(CHAOS)

.PHONY: chaos-ci
chaos-ci: deps ## Run the small set of the fault suite (DATABASE=postgres)
	$(CHAOS) -small

# Builds of the service with one promise's guard taken out, each of which the
# checker of histories must find.
.PHONY: chaos-sabotage
chaos-sabotage: deps ## Show that the fault suite's checker finds sabotaged builds (DATABASE=postgres)
	CI=true $(GO) test -tags chaos -count=1 -timeout 20m -v ./internal/verify/sabotage $(if $(DATABASE),-args -db=$(DATABASE))

.PHONY: chaos-full
chaos-full: deps ## Run the fault suite at every named point, in several rounds
	$(CHAOS) -full -rounds=5
	$(MAKE) chaos-sabotage

.PHONY: loadtest
loadtest: ## Start the service, send a burst, check the result (ARGS: options of loadtest)
	$(GO) run ./loadtest $(ARGS)

.PHONY: accept
accept: deps ## Check the contract from outside, against real processes (ARGS: names of checks)
	@test -f $(ACCEPT) || { echo "$(ACCEPT) is not present; there is nothing to run" >&2; exit 1; }
	python3 $(ACCEPT) $(ARGS)

# The proxy stands between the acceptance and the service; see internal/verify/contractproxy.
.PHONY: contract
contract: deps build ## Run the acceptance through a proxy that checks openapi.yaml (ARGS: names of checks)
	@test -f $(ACCEPT) || { echo "$(ACCEPT) is not present; there is nothing to run" >&2; exit 1; }
	$(GO) build -o bin/contractproxy ./internal/verify/contractproxy
	./bin/contractproxy -bin bin/flashsale -- python3 $(ACCEPT) --bin={bin} $(ARGS)

# They are drawn with the fonts of this machine, so another one draws them slightly differently.
.PHONY: screenshots
screenshots: deps-test ## Draw the pictures in docs/images with a service and a browser
	CI=true $(GO) test -count=1 -timeout $(TEST_TIMEOUT) -run '^TestScreenshots$$' ./internal/verify/pages -args -screenshots=$(CURDIR)/docs/images

.PHONY: ci
ci: ## Run what continuous integration runs
	.ci/run

.PHONY: deps
deps: ## Install redis-server where it is missing
	@.ci/deps.sh

.PHONY: deps-postgres
deps-postgres: ## Install Postgres and PgBouncer where they are missing; no service of theirs is started
	@.ci/deps.sh postgresql
	@.ci/deps.sh pgbouncer

.PHONY: deps-test
deps-test: deps deps-postgres ## Install redis-server, Postgres, PgBouncer, Chromium and systemd-analyze, and unpack promtool and prometheus to .cache, where they are missing
	@.ci/deps.sh prometheus
	@.ci/deps.sh chromium
	@.ci/deps.sh systemd || echo 'systemd-analyze cannot be installed; the tests of the units will be skipped' >&2

.PHONY: tidy-check
tidy-check: ## Fail when go.mod or go.sum is not tidy or a module was altered
	$(GO) mod tidy -diff
	cd bench && $(GO) mod tidy -diff
	cd deploy/check && $(GO) mod tidy -diff
	$(GO) mod verify

# Not part of ci: it asks a vulnerability database over the network, and its
# answer changes without a change of the code.
.PHONY: vuln
vuln: $(GOVULNCHECK) ## Look for known vulnerabilities in what the code calls
	$(GOVULNCHECK) ./...

.PHONY: cover
cover: deps-test ## Measure the test coverage over all packages; the page is .cache/cover/index.html
	mkdir -p $(COVER)
	CI=true $(GO) test -shuffle=on -timeout $(TEST_TIMEOUT) -coverpkg=./... -coverprofile=$(COVER)/profile ./...
	$(GO) tool cover -html=$(COVER)/profile -o $(COVER)/index.html
	$(GO) tool cover -func=$(COVER)/profile | tail -n 1

.PHONY: clean
clean: ## Remove what was built, but keep the tools
	rm -rf bin $(COVER)
	find . -name .git -prune -o -type f \( -name '*.test' -o -name '*.prof' \) -exec rm -f {} +

$(GOLANGCI_LINT):
	.ci/install-tool.sh github.com/golangci/golangci-lint/v2/cmd/golangci-lint $(GOLANGCI_LINT_VERSION) $@

$(BENCHSTAT):
	.ci/install-tool.sh golang.org/x/perf/cmd/benchstat $(BENCHSTAT_VERSION) $@

$(GOVULNCHECK):
	.ci/install-tool.sh golang.org/x/vuln/cmd/govulncheck $(GOVULNCHECK_VERSION) $@
