# The one entry point. Every target says what it does in its `## help` line; the work is in scripts/.

.DEFAULT_GOAL := help
.PHONY: help setup extension driver build demo psql stop test test-core bench bench-peers lint docker-lint check-features clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r target text; do printf '  make %-16s%s\n' "$$target" "$$text"; done

setup: ## install what is missing: PostgreSQL 15, headers, cargo-pgrx, cargo-nextest
	@scripts/setup

extension: ## build the extension and install it into PostgreSQL 15
	@scripts/setup demo
	@scripts/build-extension

driver: ## build the daemon, paylatchd
	@scripts/build-driver --release

build: extension driver ## build and install everything

demo: build ## 2,000 payments under faults, end to end; KEEP=1 leaves it running, FLOWS= and SEED= choose
	@KEEP="$(KEEP)" FLOWS="$(FLOWS)" SEED="$(SEED)" scripts/demo

psql: ## open psql on the demo that KEEP=1 left running
	@scripts/cluster psql .run/demo/cluster

stop: ## stop that demo
	@scripts/demo stop

test: setup extension ## every test, against a cluster made for this run; ARGS= goes to cargo nextest
	@scripts/test $(ARGS)

test-core: ## the pure rules only: no database, a few seconds
	@cargo test --quiet --package paylatch-core

bench: build ## every figure of docs/performance.md beside its baseline; ARGS="--only s1,s3 --rounds 7 --long" chooses
	@scripts/bench $(ARGS)

bench-peers: build ## whole lives against DBOS Transact, graphile-worker and pg-boss
	@scripts/bench --peers $(ARGS)

lint: ## rustfmt, clippy, shellcheck, hadolint, compose schema
	@scripts/lint

docker-lint: ## Dockerfile and compose.yaml alone
	@scripts/lint docker

check-features: ## compile the extension for each of PostgreSQL 14 to 17 whose headers are here
	@scripts/check-features

clean: ## stop our clusters and delete all that was built
	@for dir in .run/* .run/*/*; do if [ -e "$$dir/data" ]; then scripts/cluster drop "$$dir"; fi; done
	@rm -rf .run
	@cargo clean --quiet
