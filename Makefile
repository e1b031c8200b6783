# The image that the manifests name and that docker-build builds.
VERSION ?= $(shell git describe --tags --match 'v*' --always --dirty 2>/dev/null || echo dev)
IMG ?= ghcr.io/external-backend/operator:$(VERSION)
PLATFORMS ?= linux/amd64 linux/arm64
# The plugins run where people work.
PLUGIN_PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
CONTAINER_TOOL ?= docker

# TESTFLAGS go to `go test`, FUZZTIME to every fuzz target, RUN_ARGS to the manager under `make run`. BENCH selects
# benchmarks. RERUNS is how often a failed test of a cluster runs again.
TESTFLAGS ?=
RERUNS ?=
FUZZTIME ?= 30s
BENCH ?= .
RUN_ARGS ?= --metrics-bind-address=0

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two development clusters at a time are too much for a small machine, and `make test` depends on its order.
.NOTPARALLEL:

# A user's own GOFLAGS or workspace must not change the build. Stamping from git is off because it fails in a checkout
# that belongs to another user; -ldflags sets the version.
export GOFLAGS := -mod=readonly -buildvcs=false
export GOWORK := off
# All commands except the race detector have the same setting, so that they share one build cache.
export CGO_ENABLED := 0

# test/prometheus and test/kubestatemetrics are not among them. The go.mod of the first can't be tidied where modules
# that only the service discovery of Prometheus needs are not reachable, and linting either takes minutes.
MODULES := . devcluster test test/bench/slices test/chart tools
TOOL := go tool -modfile=$(CURDIR)/tools/go.mod
CONTROLLER_GEN := $(TOOL) controller-gen
KUSTOMIZE := $(TOOL) kustomize
GOVULNCHECK := $(TOOL) govulncheck
GOLANGCI_LINT := go tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint
# The default is the development cluster's kubectl if there is no other.
KUBECTL ?= $(or $(shell command -v kubectl),bin/devcluster kubectl)
OWN_KUBECTL := $(filter bin/devcluster,$(KUBECTL))

API_LINT := go tool -modfile=$(CURDIR)/tools/apilint/go.mod golangci-lint-kube-api-linter

GO_BUILD := go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'
CHART := charts/external-backend-operator
GENERATED := api config/argocd/actions config/crd config/rbac $(CHART)/files docs/reference
# Where chart writes.
DIST ?= dist
comma := ,

# $(call each-module,COMMAND) runs COMMAND inside every Go module. It fails at the end if COMMAND failed in any of them.
each-module = failed=; for m in $(MODULES); do echo "--- $$m: $(1)"; (cd $$m && $(1)) || failed="$$failed $$m"; done; \
	if [ -n "$$failed" ]; then echo "failed in:$$failed" >&2; exit 1; fi

##@ Everyday

.PHONY: help
help: ## List all commands (the default)
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\n%s\n' 'Variables: IMG, VERSION, PLATFORMS, CONTAINER_TOOL, TESTFLAGS, RERUNS, CLUSTERS, FUZZTIME, BENCH, RUN_ARGS, KUBECTL, and DEMO_FOR (30s, 5m) or UI=1 (until Ctrl-C) for the demo.'

.PHONY: build
build: ## Build bin/manager
	$(GO_BUILD) -o bin/manager ./cmd

.PHONY: plugin
plugin: ## Build bin/kubectl-external_backend, the kubectl plugin
	$(GO_BUILD) -o bin/kubectl-external_backend ./cmd/kubectl-external_backend

.PHONY: demo
demo: packages ## Watch traffic follow health on a development cluster, also on a live page; UI=1 runs it until Ctrl-C
	@echo 'Compiling the demonstration, and then a small cluster and the manager. The first time, this takes seven to' \
		'eleven minutes, as fast as the machine compiles. Later on, it starts at once.'
	@cd test && go build '-trimpath' '-gcflags=all=-N -l -dwarf=false' -o ../bin/demo ./demo
	@bin/demo

.PHONY: run
run: build ## Run the manager here, against kubectl's current cluster
	bin/manager $(RUN_ARGS)

.PHONY: devcluster-up
devcluster-up: packages build bin/devcluster ## Start the development cluster, until Ctrl-C, and download what make run needs
	bin/devcluster up

.PHONY: clean
clean: ## Remove all build results here (the development cluster's binaries stay in the user's cache)
	rm -rf bin dist cover.out

##@ Code

.PHONY: generate
generate: ## Write deepcopy functions and apply configurations
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt applyconfiguration:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: manifests
manifests: ## Write the CRDs, the manager's ClusterRole, Argo CD's actions, and what the Helm chart takes from config
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=manager-role paths=./controllers/... output:rbac:dir=config/rbac
	hack/argocd-actions.sh
	rm -rf $(CHART)/files
	mkdir -p $(CHART)/files/dashboards
	$(KUSTOMIZE) build --load-restrictor LoadRestrictionsNone config/chart --output $(CHART)/files
	cp config/grafana/*.json $(CHART)/files/dashboards/

.PHONY: docs
docs: ## Write the reference pages: API, flags, conditions, events and metrics
	$(GO_BUILD) -o bin/manager ./cmd
	go run ./hack/reference
	cd test && go test -count=1 ./series -run '^TestReferenceHasTheOperatorsMetrics$$' -update

.PHONY: site
site: ## Write a website of all documents to dist/site
	rm -rf dist/site
	cd tools && go run ./site -root .. -out ../dist/site
	@echo 'Open dist/site/index.html.'

.PHONY: fmt
fmt: ## Format the Go code
	gofmt -w .

.PHONY: vet
vet: ## Run go vet in every module
	@$(call each-module,go vet ./...)

.PHONY: lint
lint: ## Run the linters, the import rules among them, in every module, and check widths, links and workflows
	@$(call each-module,$(GOLANGCI_LINT) run ./...)
	$(API_LINT) run -c .golangci.api.yml ./api/v1alpha1/
	hack/width.sh
	cd tools && go run ./site -root ..
	$(TOOL) actionlint -shellcheck= -pyflakes=

.PHONY: verify
verify: generate manifests docs ## Fail if generated files, formatting or go.mod files are not current
	@status=$$(git status --porcelain --untracked-files=all -- $(GENERATED)); \
	if [ -n "$$status" ]; then \
		printf '%s\n' 'Generated files differ from what is committed:' "$$status" >&2; git --no-pager diff -- $(GENERATED); exit 1; \
	fi
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then printf '%s\n' 'Not formatted (make fmt):' "$$unformatted" >&2; exit 1; fi
	@$(call each-module,go mod tidy -diff)

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in every module (asks vuln.go.dev)
	@$(call each-module,$(GOVULNCHECK) ./...)

##@ Tests

RACE := CGO_ENABLED=1 go test -race $(TESTFLAGS)

# Packages of cluster tests wait for half of the time, so two of them run at a time.
CLUSTERS ?= 2

# $(call cluster-tests,MODULE,FLAGS) runs the tests of a module that start clusters. With RERUNS=2, a failed test runs
# again, twice at most, and bin/reruns-MODULE.txt names it. A data race is a failure at once.
cluster-tests = rm -f bin/reruns-$(subst /,-,$(1)).txt && cd $(1) && CGO_ENABLED=1 $(if $(RERUNS),$(TOOL) gotestsum --format=standard-quiet --packages=./... \
	--rerun-fails=$(RERUNS) --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-max-failures=20 \
	--rerun-fails-report=$(CURDIR)/bin/reruns-$(subst /,-,$(1)).txt --,go test ./...) -race $(TESTFLAGS) -count=1 -p $(CLUSTERS) $(2)

# unit-tests runs the tests of the modules in which none needs a cluster.
define unit-tests
$(RACE) -short -timeout 15m ./...
	go test $(TESTFLAGS) -run '^TestForetoldPolicyChangesComeTrueRandom$$' ./controllers
	go test $(TESTFLAGS) -run '^TestEachBackendHasOneWriter$$' ./internal/fleet
	cd test/prometheus && go test -count=1 $(TESTFLAGS) ./...
	cd test/kubestatemetrics && go test -count=1 $(TESTFLAGS) ./...
endef

.PHONY: test
test: packages bin/devcluster ## Run all tests, under the race detector (root)
	hack/debian-packages.sh chromium gcc libc6-dev nginx redis-server
	bin/devcluster build
	$(unit-tests)
	cd tools && $(RACE) ./...
	$(call cluster-tests,devcluster,-timeout 20m)
	$(call cluster-tests,test,-timeout 45m)
	$(call cluster-tests,test/chart,-timeout 15m)

# Go does not notice when files outside of a module have changed, so results of the modules below are never reused.
.PHONY: test-unit
test-unit: ## Run the tests that need no cluster and no root
	$(unit-tests)
	cd test && $(RACE) -count=1 ./admission ./compatibility ./gitops ./series
	cd test/chart && $(RACE) -count=1 .

.PHONY: bench
bench: ## Run all benchmarks; BENCH=regexp runs only the Go benchmarks that match
	go test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m ./...
	$(if $(filter .,$(BENCH)),$(MAKE) bench-slices bench-probes bench-scale bench-names bench-siblings bench-fleet)

.PHONY: bench-slices
bench-slices: ## Run the slice planner and upstream's reconciler on the same traces, some ten minutes
	cd test/bench/slices && go run .

.PHONY: bench-probes
bench-probes: packages ## Compare the prober with HAProxy's checks over veth, some twelve minutes (root)
	hack/debian-packages.sh haproxy
	cd test && go build -trimpath -o ../bin/probes ./bench/probes
	bin/probes

.PHONY: bench-scale
bench-scale: packages ## Measure 110,000 endpoints on a development cluster, some ten minutes (root)
	cd test && go build -trimpath -o ../bin/scale ./bench/scale
	bin/scale

.PHONY: bench-names
bench-names: packages ## Measure on a development cluster how soon changed DNS records are published, some five minutes (root)
	cd test && go build -trimpath -o ../bin/names ./bench/names
	bin/names

.PHONY: bench-siblings
bench-siblings: packages ## Measure how soon a sibling publishes what a deleted ExternalBackend published, some three minutes (root)
	cd test && go build -trimpath -o ../bin/siblings ./bench/siblings
	bin/siblings

.PHONY: bench-fleet
bench-fleet: packages ## Measure how soon the share of a lost replica is followed, and what witnesses cost, some fifteen minutes (root)
	go test ./internal/fleet -run '^TestOwnership' -v -bench . -count=1
	cd test && go build -trimpath -o ../bin/fleet ./bench/fleet
	bin/fleet

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	for pkg in $$(go list ./...); do \
		for target in $$(go test -run '^$$' -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime '$(FUZZTIME)' "$$pkg"; \
		done; \
	done

.PHONY: packages
packages: ## Install missing Debian packages that the development cluster needs (root)
	hack/debian-packages.sh

.PHONY: bin/devcluster
bin/devcluster:
	cd devcluster && go build -trimpath -o ../bin/devcluster ./cmd/devcluster

##@ Cluster

.PHONY: install
install: $(OWN_KUBECTL) ## Install the CRDs into kubectl's current cluster
	$(KUBECTL) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: $(OWN_KUBECTL) ## Remove the CRDs, and every ExternalBackend with them
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: $(OWN_KUBECTL) build-installer ## Install CRDs, roles and the manager with image IMG
	$(KUBECTL) apply --server-side -f dist/install.yaml

.PHONY: undeploy
undeploy: $(OWN_KUBECTL) ## Remove everything that deploy installed: the manager first, so that it does not see policies disappear
	$(KUBECTL) delete deployment -n external-backend-system external-backend-controller-manager --cascade=foreground --ignore-not-found
	$(KUBECTL) delete --ignore-not-found -k config/default

##@ Release

.PHONY: build-installer
build-installer: ## Write dist/install.yaml, which installs everything with image IMG
	mkdir -p dist
	$(KUSTOMIZE) build config/default | sed 's|image: controller:latest|image: $(IMG)|' >dist/install.yaml
	@grep -qF 'image: $(IMG)' dist/install.yaml || { echo 'config/manager names an image other than controller:latest, so that IMG changes nothing' >&2; exit 1; }

.PHONY: chart
chart: ## Write the Helm chart to dist, which installs image IMG
	hack/package-chart.sh '$(VERSION)' '$(IMG)' '$(DIST)'

.PHONY: docker-build
docker-build: ## Build the image IMG
	$(CONTAINER_TOOL) build --build-arg VERSION=$(VERSION) --tag $(IMG) .

.PHONY: docker-push
docker-push: ## Push the image IMG
	$(CONTAINER_TOOL) push $(IMG)

.PHONY: docker-buildx
docker-buildx: ## Build the image IMG for all PLATFORMS and push it, with a docker builder of its own
	$(CONTAINER_TOOL) buildx inspect external-backend >/dev/null 2>&1 || $(CONTAINER_TOOL) buildx create --name external-backend
	$(CONTAINER_TOOL) buildx build --builder external-backend --platform $(subst $() ,$(comma),$(strip $(PLATFORMS))) --build-arg VERSION=$(VERSION) --tag $(IMG) --push .

.PHONY: released-crds
released-crds: ## Take today's CRDs and defaults for those of release VERSION; later changes are compared with them
	cd test && go test -count=1 ./compatibility -run '^$$' -release '$(VERSION)'

# The commit of a final version has that version's CRDs, so that later commits are compared with them.
.PHONY: check-released-crds
check-released-crds:
	@if [[ '$(VERSION)' =~ ^v[0-9]+\.[0-9]+\.[0-9]+$$ ]]; then \
		$(MAKE) released-crds; \
		changed=$$(git status --porcelain -- test/compatibility); \
		if [ -n "$$changed" ]; then printf '%s\n' 'Commit before the tag (RELEASE.md):' "$$changed" >&2; exit 1; fi; \
	fi

.PHONY: release
release: check-released-crds build-installer chart release-plugins ## Write binaries, install.yaml, the Helm chart, an SBOM for each binary, and checksums to dist
	rm -f dist/manager_* dist/SHA256SUMS
	cd tools && go build -o ../bin/sbom ./sbom
	for platform in $(PLATFORMS); do \
		out=dist/manager_$${platform/\//_}; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO_BUILD) -o $$out ./cmd; \
		bin/sbom -version '$(VERSION)' $$out >$$out.cdx.json; \
	done
	cd dist && sha256sum install.yaml external-backend.yaml *.tgz manager_* kubectl-* >SHA256SUMS

.PHONY: release-plugins
release-plugins: ## Write the kubectl plugin for all its platforms, and its krew manifest, to dist
	rm -rf dist/kubectl-* dist/plugin
	cd tools && go build -o ../bin/sbom ./sbom
	for platform in $(PLUGIN_PLATFORMS); do \
		out=dist/kubectl-external_backend_$${platform/\//_}; \
		binary=dist/plugin/kubectl-external_backend; \
		[[ $$platform != windows/* ]] || binary+=.exe; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO_BUILD) -o $$binary ./cmd/kubectl-external_backend; \
		hack/package-plugin.sh $$binary $$out.tar.gz; \
		bin/sbom -version '$(VERSION)' $$binary >$$out.cdx.json; \
	done
	rm -r dist/plugin
	hack/krew-manifest.sh '$(VERSION)' dist >dist/external-backend.yaml
