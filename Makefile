# make serve      set up, fetch the default model if absent, serve it with an OpenAI API on 127.0.0.1:$(PORT)
# make test       set up, then every check that CI runs
PYTHON ?= python3
PORT ?= 8000
MODEL ?= smollm2
BIN := .venv/bin

.PHONY: serve chat test lint test-slow test-faults test-soak test-browser test-clients test-sanitize test-neon test-gpu bench bench-cpu bench-peers bench-gpu clean

serve:
	@$(PYTHON) tools/setup.py
	@$(BIN)/trivium serve $(MODEL) --port $(PORT)

chat:
	@$(PYTHON) tools/setup.py
	@$(BIN)/trivium chat $(MODEL)

# Three processes for two cores: one waits for a server while the others compute. In the order of the folders the short files
# come last, so that all three end at about the same time.
test: lint
	@$(BIN)/trivium pull smollm2
	@$(BIN)/trivium pull minilm
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint:
	@$(PYTHON) tools/setup.py test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test-slow:
	@$(PYTHON) tools/setup.py test
	@$(BIN)/trivium pull smollm2
	@$(BIN)/trivium pull minilm
	@$(BIN)/python -m pytest -m slow --timeout 1800

# Every fault point in every state of the server, once and for five seconds: a quarter of an hour, most of it waiting.
test-faults:
	@$(PYTHON) tools/setup.py test
	@$(BIN)/python -m pytest -m faults -n 3

# Mixed load, killed engines, overload, the server's clock beside a client's, and what tenants can tell of each other by the
# clock, with their figures. SOAK_SECONDS, KILLS, OVERLOAD_SECONDS, CLOCK_REQUESTS and TENANT_PROBES make it longer or shorter.
test-soak:
	@$(PYTHON) tools/setup.py test
	@$(BIN)/trivium pull smollm2
	@$(BIN)/python -m pytest -m soak -s

# The web page in a real browser, which is fetched where it is missing; `make test` does so only where it is there.
test-browser:
	@$(PYTHON) tools/setup.py test
	@command -v chromium || command -v chromium-browser || command -v google-chrome || apt-get install -y -q chromium
	@$(BIN)/python -m pytest -m browser

# Clients and programs of other people against the server: they need another openai than the other tests, so have their own
# .venv-clients. Claude Code and Codex are run where there is npm.
test-clients:
	@$(PYTHON) tools/setup.py test
	@test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/pip install -q --disable-pip-version-check -r tests/clients/requirements.txt
	@! command -v npm > /dev/null || test -d .venv-clients/npm || \
	  npm install --silent --no-audit --no-fund --prefix .venv-clients/npm @anthropic-ai/claude-code @openai/codex
	@.venv-clients/bin/python -m pytest tests/clients

# On a machine with an NVIDIA GPU: the kernels, and the core's own tests, which then run there; those that fill the card or
# measure its memory alone.
CORE_TESTS := $(addprefix tests/golden/test_,engine_tokens.py invariance.py overlap.py random_lives.py)
test-gpu: export TEST_DEVICE := cuda
test-gpu: export OMP_NUM_THREADS := 2
test-gpu:
	@$(PYTHON) tools/setup.py test
	@$(BIN)/python -m pytest -m 'not slow' -n 12 --dist loadgroup $(CORE_TESTS) tests/gpu --ignore tests/gpu/test_memory_on_gpu.py
	@$(BIN)/python -m pytest -m gpu tests/gpu/test_memory_on_gpu.py

bench-gpu:
	@$(PYTHON) tools/setup.py
	@$(BIN)/python bench/bench_gpu.py --check

# The tests of the native kernels with AddressSanitizer and UndefinedBehaviorSanitizer, on a build of its own.
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g
CXX ?= c++
test-sanitize:
	@$(PYTHON) tools/setup.py test
	@$(BIN)/pip install -q cmake nanobind
	@PATH=$(CURDIR)/$(BIN):$$PATH cmake -S native -B build/sanitize -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -DCMAKE_CXX_FLAGS="$(SANITIZERS)" -DCMAKE_MODULE_LINKER_FLAGS="$(SANITIZERS)" > /dev/null
	@PATH=$(CURDIR)/$(BIN):$$PATH cmake --build build/sanitize --parallel 2
	@SANITIZED_NATIVE=$$(echo build/sanitize/_native*.so) PYTHONPATH=native/test ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest -p sanitized tests/parity --timeout 1200

# The kernels for 64-bit Arm under an emulator, which is installed where it is missing and can be.
test-neon:
	@$(PYTHON) tools/setup.py test
	@command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null || apt-get install -y -qq g++-aarch64-linux-gnu qemu-user
	@$(BIN)/python -m pytest tests/parity/test_neon.py

bench:
	@$(PYTHON) tools/setup.py
	@$(BIN)/trivium pull smollm2
	@$(BIN)/python bench/prefix_sharing.py

# The engine beside its peers on this machine's processor; those that `make bench-peers` could install. Then every op
# beside the torch reference. BENCH: options of bench/bench_cpu.py.
PEERS ?= .peers
bench-cpu:
	@$(PYTHON) tools/setup.py
	@$(BIN)/trivium pull smollm2
	@$(BIN)/python bench/bench_cpu.py --peers $(PEERS) $(BENCH)
	@$(BIN)/python bench/bench_kernels.py --models smollm2

bench-peers:
	@$(PYTHON) bench/install_peers.py --home $(PEERS)

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
