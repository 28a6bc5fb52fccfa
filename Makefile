# larql's commands. Each does its own set-up on a fresh machine with a Rust toolchain and Python 3.
#
#   make demo    build, fetch Gemma 3 270M, make a vindex of it and walk through it
#   make test    fetch the model once, then every test
#   make test-hub  the tests of `larql pull hf://…` (feature hub), against a server of their own
#   make lint    formatting, clippy and documentation, warnings denied
#   make bench   benchmarks of the search (release build)
#   make fuzz    a minute of every fuzz target
#   make test-aarch64  the kernels' tests for aarch64, emulated (Debian; installs what it needs)
#   make model   only fetch the model, into larql's cache directory
#
# LARQL_SKIP_MODEL_TESTS=1 make test runs without the model: the tests that need it (model_*) then
# pass unrun.

CARGO ?= cargo
FUZZ_SECONDS ?= 60

.PHONY: demo test test-hub test-aarch64 lint bench fuzz model

demo:
	$(CARGO) build --release --locked -p larql-cli
	scripts/demo.sh target/release/larql

# The binary that fetches is the one that the tests are about to use: built with the whole workspace,
# so that no dependency is compiled twice with other features.
test:
	$(CARGO) test --workspace --locked --no-run
ifeq ($(LARQL_SKIP_MODEL_TESTS),1)
	@echo "LARQL_SKIP_MODEL_TESTS=1: the model is not fetched"
else
	"$${CARGO_TARGET_DIR:-target}/debug/larql" pull gemma-3-270m
endif
	$(CARGO) test --workspace --locked
	@echo "all tests passed"

# With the features of the whole workspace, so that only what the hub adds is compiled.
test-hub:
	$(CARGO) test --workspace --locked --features larql-cli/hub --test hub

model:
	$(CARGO) run --quiet --locked -p larql-cli -- pull gemma-3-270m

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --all-targets --locked --features larql-cli/hub -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

bench: model
	$(CARGO) bench --workspace --locked

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

test-aarch64:
	scripts/test-aarch64.sh
