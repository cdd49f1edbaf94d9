# Targets that install what is missing, test, lint and demonstrate. Included by the Makefile.
PYTHON	?= $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $(p) -c 'import numpy, pytest, xdist' 2>/dev/null && \
	   command -v $(p))) python3)
CHECKFLAGS ?=

help:
	@echo 'make             build everything into build/$$BUILD (BUILD=release|debug|asan|tsan|cov)'
	@echo '                 CUDA=no leaves the program for GPUs out, CUDA_HOME=DIR names the toolkit'
	@echo 'make gpu-tests   programs that ask a real GPU; tests/gpu/run A|B|C|D, docs/guides/gpu-tests.md'
	@echo 'make clean       remove build/, of all BUILDs'
	@echo 'make demo        install what is missing, build, train the example on a private cluster'
	@echo 'make test        install what is missing, build for debugging, pass the tests'
	@echo 'make check       build and run the tests of this BUILD; CHECKFLAGS="--only WORD --no-cluster"'
	@echo 'make check-asan  all tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make check-tsan  unit tests, and daemons that drive GPUs, under ThreadSanitizer'
	@echo 'make test-frontends  tests of bps.torch, in an environment of their own (downloads PyTorch)'
	@echo 'make sim         100,000 simulated histories, sim-10m ten million, SIM_MINUTES=n of it;'
	@echo '                 sim-mutants: what they catch'
	@echo 'make sim-scale   tables of predicted training steps; make sim-scale-mutants: what they catch'
	@echo 'make matrix      every cell of the fault matrix REPEAT times (20), as many as MINUTES (55) allow;'
	@echo '                 again for the rest; SHARD=i/n, AT_ONCE=n; writes docs/results'
	@echo 'make chaos       three jobs under random faults for SECONDS (1800); SEED=n'
	@echo 'make crashes     CRASHES (1000) trainers are killed; make noticed: how soon KILLS (300) crashes are seen'
	@echo 'make sched-load  a scheduler with 1,000 members and 10,000 tensors'
	@echo 'make lint        formatting, folders, names, clang-tidy, cppcheck, gcc -fanalyzer, shellcheck, man pages'
	@echo 'make hooks       let git check the form of commit messages (docs/CONTRIBUTING.md)'
	@echo 'make fuzz        each fuzz target for FUZZ_S seconds (60) with libFuzzer'
	@echo 'make everything  every slow target, within two hours; writes docs/results/everything.md; ONLY=a,b runs some'
	@echo 'make huge        one tensor of more than 2^32 elements (needs 20 GiB of memory)'
	@echo 'make latency     4 KiB push_pull against Gloo, in one run'
	@echo 'make bench-bars  every bar of the data path, into docs/results/performance; BARS="--only a --repeat 3" (root; an hour)'
	@echo 'make install     into $$DESTDIR$$PREFIX (/usr/local); make uninstall'
	@echo 'make deb         Debian packages in build/deb'
	@echo 'make deb-again   build the packages twice; they must be the same'
	@echo 'make nspawn      the packages on 5 systemd machines in containers (root; minutes)'
	@echo 'make qemu        daemons over libfabric verbs, and NUMA nodes, on an emulated machine; QEMU_ONLY=WORD'

# Each step in a make of its own: what is found by pkg-config changes when packages are installed.
JOBS	= $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
STEP	= $(Q)$(MAKE) --no-print-directory $(JOBS)

demo:
	$(Q)tests/install-deps.sh build
	$(STEP) BUILD=release all
	$(Q)tests/demo.sh build/release

test:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=debug check

check: all check-build
	$(Q)$(PYTHON) tests/run.py $(B) $(CHECKFLAGS)
check-build: $(UNITBINS) $(FUZZBINS) $(SIMBIN) $(SCALEBIN) $(PROBEBIN)

check-asan:
	$(STEP) BUILD=asan check
# Of the tests with real daemons those that drive GPUs. Their workers, which Python runs, load the
# library of the debug build.
check-tsan:
	$(STEP) BUILD=debug all
	$(STEP) BUILD=tsan check CHECKFLAGS="--cluster test_device $(CHECKFLAGS)"

# The targets again, with libFuzzer's main and its counters in all that they call.
FUZZ_S	?= 60
FUZZERS	:= $(patsubst tests/fuzz/%.c,$(B)/fuzzers/%,$(FUZZ))
$(FUZZERS): $(B)/fuzzers/%: $(B)/tests/fuzz/%.o $(LIBCORES) $(LIBCOMMON)
	$(call link,-fsanitize=fuzzer $(LIBS))
fuzzers: $(FUZZERS)
fuzz:
	$(Q)tests/install-deps.sh fuzz
	$(STEP) CC=clang BUILD=asan B=build/fuzz CFLAGS=-fsanitize=fuzzer-no-link fuzzers
	$(Q)tests/fuzz/run.sh build/fuzz/fuzzers $(FUZZ_S)

.PHONY: help demo test check check-build check-asan check-tsan fuzzers fuzz

# The front-ends, each in an environment that is made once, below build/frontends.
test-frontends:
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=debug all
	$(Q)python3 tests/frontends/run.py build/debug
.PHONY: test-frontends

# What is too large or too slow for every run.
huge:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release all
	$(Q)BPS_BUILD=$(CURDIR)/build/release $(PYTHON) -m pytest -q -p no:cacheprovider tests/cluster/huge.py
latency:
	$(Q)tests/install-deps.sh bench
	$(STEP) BUILD=release all
	$(Q)tests/bench/latency.py build/release --min-ratio 1.5
bench-build: all $(PROBEBIN) $(SCALEBIN)
bench-bars:
	$(Q)tests/install-deps.sh bench
	$(STEP) BUILD=release bench-build
	$(Q)tests/bench/bars build/release --out docs/results/performance $(BARS)
.PHONY: huge latency bench-build bench-bars

# Every slow target in turn, at sizes that fit two hours on two processors. ONLY=a,b chooses some of them.
everything:
	$(Q)$(PYTHON) tests/everything.py $(if $(ONLY),--only $(ONLY) --out build/everything/some.md)
.PHONY: everything

# Faults of every kind to every kind of process, with real ones (root, network namespaces).
REPEAT	?= 20
SHARD	?= 1/1
MINUTES	?= 55
MATRIX_TABLE ?= docs/results/fault-matrix.md
AT_ONCE	?= $(shell echo $$((2 * $$(nproc))))
matrix:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release all
	$(Q)$(PYTHON) tests/faults/matrix.py build/release --repeat $(REPEAT) --shard $(SHARD) --minutes $(MINUTES) \
		--at-once $(AT_ONCE) --table $(MATRIX_TABLE)
# Three jobs under random faults for SECONDS s; 1,000 deaths of trainers; how soon a crash is noticed.
SECONDS ?= 1800
SEED	?= 1
CRASHES	?= 1000
KILLS	?= 300
chaos:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release all
	$(Q)$(PYTHON) tests/faults/chaos.py build/release --seconds $(SECONDS) --seed $(SEED)
crashes:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release all
	$(Q)$(PYTHON) tests/faults/crashes.py build/release --crashes $(CRASHES) --seed $(SEED)
noticed:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release all
	$(Q)$(PYTHON) tests/faults/noticed.py build/release --kills $(KILLS)
.PHONY: matrix chaos crashes noticed

# Provider verbs, in the kernel of an emulated machine.
QEMU_ONLY ?=
qemu:
	$(Q)tests/install-deps.sh qemu
	$(STEP) BUILD=debug all build/debug/tests/test_fabric build/debug/tests/test_net
	$(Q)tests/qemu/run.sh build/debug build/qemu $(QEMU_ONLY)
.PHONY: qemu

# Static analysis in a build of its own, so that only what changed is looked at again: gcc's analyser makes the objects,
# and a .tidy file says that clang-tidy found its source clean. Tests of units are left out of the analysers that follow
# paths: cmocka's assertions end a test by a jump that they do not see. Leaks are left to LeakSanitizer: gcc 12 takes
# what goes onto a list or into the caller's struct for lost.
LINT_SRC := $(sort $(ALLSRC))
LINT_C	:= $(shell git ls-files '*.c' '*.h' 2>/dev/null)
LINT_SH	:= $(shell git ls-files '*.sh' .ci/run tests/hooks 2>/dev/null)
LINT_MAN := $(wildcard docs/man/*.[1-8])
LINT_UNITS := $(wildcard systemd/*.service systemd/*.socket)
LINT_INC = $(if $(filter common/base/error.c libbpsclient/last_error.c,$<),,-include tests/lint.h)
ifdef ANALYZE # (LINT is a variable of make itself)
# Headers whose macros cppcheck has to know to find its way.
LINT_H	:= $(filter %/queue.h %/jansson.h,$(shell printf '\043include <%s>\n' sys/queue.h jansson.h | \
	$(CC) $(PKG_CFLAGS) -E -M -xc -))
ISA = $(if $(filter tests/unit/%,$<),,-fanalyzer -Wno-analyzer-malloc-leak $(LINT_INC))
endif
$(B)/%.tidy: %.c $(B)/%.o .clang-tidy tests/lint.h
	$(call say,TIDY,$<)
	$(Q)clang-tidy --quiet $< -- -std=gnu11 -I. -D_GNU_SOURCE -DBPS_VERSION='"0"' \
		$(LINT_INC) $(PKG_CFLAGS) $(CUDA_CFLAGS) 2>$@.err || { cat $@.err; exit 1; }
	$(Q)touch $@

lint-format:
	$(Q)echo $(LINT_C) | xargs -n 40 -P 2 clang-format --dry-run -Werror
# Folders include only what the design allows, and a name means one thing.
lint-layers:
	$(Q)$(PYTHON) tests/layers.py
lint-names:
	$(Q)$(PYTHON) tests/unique_names.py
# Comments and documents in plain English; more folders follow.
lint-prose:
	$(Q)$(PYTHON) tests/prose.py $$(git ls-files README.md common bps-agent bps-server bps-scheduler libbpsclient | \
		grep -E '\.(c|h|py|sh|md|mk)$$')
lint-cppcheck:
	$(Q)cppcheck --quiet -j 2 $(addprefix --include=,$(LINT_H)) \
		--enable=warning,performance,portability --inline-suppr --std=c11 --error-exitcode=1 \
		--suppress=varFuncNullUB -I. -D_GNU_SOURCE -D__x86_64__ \
		-DBPS_VERSION='"0"' $(filter-out tests/unit/%,$(LINT_SRC))
lint-shell:
	$(Q)shellcheck $(LINT_SH)
lint-man:
	$(Q)mandoc -T lint -W warning $(LINT_MAN)
lint-units:
	$(Q)out=$$(systemd-analyze verify $(LINT_UNITS) 2>&1 | \
		grep -v -e 'is not executable: No such file' -e "Command 'man bps"); \
		[ -z "$$out" ] || { echo "$$out"; exit 1; } # but for what is not installed
	$(Q)mkdir -p $(B); for limit in scheduler:13 server:20 agent:23; do # tenths of exposure, 100 is the worst \
		systemd-analyze security --offline=true --threshold=$${limit#*:} --no-pager \
			systemd/bps-$${limit%:*}.service >$(B)/exposure || { cat $(B)/exposure; exit 1; }; done
	$(Q)cat systemd/bps-agent.service systemd/bps-agent-cuda.conf >$(B)/bps-agent.service # the drop-in is read behind it
	$(Q)systemd-analyze security --offline=true --threshold=23 --no-pager $(B)/bps-agent.service >$(B)/exposure || \
		{ cat $(B)/exposure; exit 1; }
lint-rules:
	$(Q)cd systemd/prometheus && promtool check config prometheus.yml >/dev/null && \
		promtool test rules bps-alerts.test.yml >/dev/null
lint-tidy: $(patsubst %.c,$(B)/%.tidy,$(LINT_SRC))
lint-all: lint-format lint-layers lint-names lint-prose lint-cppcheck lint-shell lint-man lint-units lint-rules lint-tidy
	@echo 'lint: clean'
lint:
	$(Q)tests/install-deps.sh lint
	$(STEP) -k BUILD=debug B=build/lint ANALYZE=1 lint-all

hooks:
	$(Q)install -m 755 tests/hooks/commit-msg "$$(git rev-parse --git-path hooks)/commit-msg"

.PHONY: hooks lint lint-all lint-format lint-layers lint-names lint-prose lint-cppcheck lint-shell lint-man lint-units lint-rules lint-tidy
