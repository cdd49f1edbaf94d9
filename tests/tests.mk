# Targets for tests, linters, measurements and the demonstration. Most of the targets first install
# missing packages. Included by the Makefile.
PYTHON	?= $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $(p) -c \
	   'import numpy, pytest, xdist' 2>/dev/null && command -v $(p))) python3)
CHECKFLAGS ?=

help:
	@echo 'make             build into build/$$BUILD (BUILD=release|debug|asan|tsan|cov);'
	@echo '                 its packages: tests/install-deps.sh build'
	@echo '                 CUDA=no: without the program for GPUs; CUDA_HOME=DIR: toolkit;'
	@echo '                 WERROR=1: warnings are errors'
	@echo 'make gpu-tests   programs for tests/gpu/run A|B|C|D, docs/guides/gpu-tests.md'
	@echo 'make clean       remove build/ of all BUILDs'
	@echo 'make demo        install packages, build, train the example on a private cluster'
	@echo 'make test        install packages, build for debugging, run the tests'
	@echo 'make check       build and run the tests of this BUILD;'
	@echo '                 CHECKFLAGS="--only WORD --no-cluster"'
	@echo 'make check-providers  data connections over libfabric: Debian'"'"'s, a current one;'
	@echo '                 check-libfabric: a short part, only with a current libfabric'
	@echo 'make check-asan  all tests under Address- and UndefinedBehaviorSanitizer'
	@echo 'make check-tsan  unit tests, and daemons that drive GPUs, under ThreadSanitizer'
	@echo 'make test-frontends  tests of the Python package with each framework (download);'
	@echo '                 LISTS="torch jax" chooses frameworks; SHORT=1: fewer clusters'
	@echo 'make sim         100,000 simulated histories; sim-10m: ten million, SIM_MINUTES=n;'
	@echo '                 sim-mutants: checks that sim finds each mutant'
	@echo 'make mutation    200 small changes of the cores; unit tests or simulator must detect'
	@echo '                 each; MUTATION="--only bps-server --draw 2 --count 40"'
	@echo 'make sim-scale   tables of predicted training steps;'
	@echo '                 sim-scale-mutants: checks that sim-scale finds each mutant'
	@echo 'make upgrade     daemons of the compatibility mark and of today in one cluster'
	@echo 'make debian13    make test in a root file system of Debian 13 (root; download)'
	@echo 'make check-manifests  the manifests for Kubernetes against its schemas (download)'
	@echo 'make matrix      every cell of the fault matrix REPEAT (20) times,'
	@echo '                 at most MATRIX_MINUTES (55); continues when run again;'
	@echo '                 SHARD=i/n, AT_ONCE=n; writes docs/results'
	@echo 'make chaos       three jobs under random faults for SECONDS (1800); SEED=n'
	@echo 'make crashes     kill CRASHES (1000) trainers'
	@echo 'make noticed     measure how soon KILLS (300) crashes are detected'
	@echo 'make sched-load  a scheduler with 1,000 members and 10,000 tensors'
	@echo 'make lint        format, folders, names, prose, types of the Python package,'
	@echo '                 clang-tidy, cppcheck, gcc -fanalyzer, shellcheck, manual pages,'
	@echo '                 units, alert rules; lint-types: only the types (mypy; download);'
	@echo '                 DEEP=1: also clang'"'"'s analyser on the unit tests'
	@echo 'make hooks       let git check commit messages (docs/CONTRIBUTING.md)'
	@echo 'make fuzz        each fuzz target for FUZZ_S seconds (60) with libFuzzer'
	@echo 'make everything  the slow targets that .ci/run leaves out and that failed, or whose'
	@echo '                 files changed, as many as fit in MINUTES (60); ONLY=a,b runs some;'
	@echo '                 writes docs/results/everything.md; MINUTES=0 shows what is left'
	@echo 'make huge        one tensor of more than 2^32 elements (20 GiB of memory)'
	@echo 'make latency     4 KiB push_pull against Gloo, in one run'
	@echo 'make bench-bars  every bar of the data path, into docs/results/performance'
	@echo '                 (root; an hour); BARS="--only a --repeat 3"'
	@echo 'make bench-torch steps of PyTorch over bps and Gloo (root);'
	@echo '                 bench-frontends: steps of Keras, calls, sparse tables;'
	@echo '                 both write docs/results/performance'
	@echo 'make accuracy    training with blocks beside float32, into docs/results'
	@echo 'make asynchronous  bounds of asynchronous training, into docs/results'
	@echo 'make late          a backup machine, where machines stall, into docs/results'
	@echo 'make recipes     DiLoCo and late gradients, into docs/results (root)'
	@echo 'make install     into $$DESTDIR$$PREFIX (/usr/local); make uninstall'
	@echo 'make wheel       the Python package with library and programs, in build/wheel'
	@echo 'make wheel-test  install the wheel and run workers with nothing else'
	@echo 'make wheel-pythons  a job under each version of Python in PATH (download)'
	@echo 'make wheel-again build the wheel twice; both must be the same'
	@echo 'make dist        archive of the sources at HEAD and its digest, in build/dist'
	@echo 'make docs        pages of errors and of the Python package, in build/docs (download)'
	@echo 'make deb         Debian packages in build/deb'
	@echo 'make deb-again   build the packages twice and compare them byte by byte'
	@echo 'make image       images for containers, in build/image (root); image-test: make them'
	@echo '                 twice, and run an example job in one of them'
	@echo 'make nspawn      the packages on 5 systemd machines in containers (root)'
	@echo 'make qemu        libfabric verbs and NUMA nodes on an emulated machine;'
	@echo '                 QEMU_ONLY=WORD'

# Each step runs in a new make, because packages that a step installs change what pkg-config
# returns.
JOBS	= $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))
# `+` passes the job slots of `make -jN` on.
STEP	= +$(Q)$(MAKE) --no-print-directory $(JOBS)

demo:
	$(Q)tests/install-deps.sh build
	$(STEP) BUILD=release all
	$(Q)tests/demo.sh build/release

# Each target X of this list needs programs that can be built only if some packages are installed.
# So the target X first installs the packages, and then makes the target X-run.
READY	:= check sim sim-long sim-10m sim-check sim-mutants sim-scale sim-scale-mutants sched-load \
	   gpu-tests
$(READY):
	$(Q)tests/install-deps.sh test
	$(STEP) $@-run
.PHONY: $(READY) $(addsuffix -run,$(READY))

test:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=debug check-run

check-run: all check-build
	$(Q)$(PYTHON) tests/run.py $(B) $(CHECKFLAGS)
check-build: $(UNITBINS) $(FUZZBINS) $(SIMBIN) $(SCALEBIN) $(PROBEBIN)

# Run the tests of data connections with the provider tcp twice: with Debian's libfabric, and with a
# current libfabric.
check-providers:
	$(Q)tests/install-deps.sh providers
	$(STEP) BUILD=debug all check-build
	$(Q)tests/libfabric.sh build/libfabric
	$(Q)$(PYTHON) tests/run.py build/debug --provider tcp $(CHECKFLAGS)
	$(Q)$(PYTHON) tests/run.py build/debug --provider tcp --libfabric build/libfabric \
		$(CHECKFLAGS)
# Run a short part of these tests with a current libfabric.
check-libfabric:
	$(Q)tests/install-deps.sh providers
	$(STEP) BUILD=debug all check-build
	$(Q)tests/libfabric.sh build/libfabric
	$(Q)$(PYTHON) tests/run.py build/debug --provider tcp --libfabric build/libfabric --short \
		$(CHECKFLAGS)
.PHONY: check-providers check-libfabric

check-asan:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=asan check-run
# Run two groups of tests with ThreadSanitizer: the unit tests, and the tests in which real daemons
# drive GPUs (tests/cluster/test_device*.py). The other tests with real daemons are left out. The
# workers of the second group are Python processes. These processes load the library and the fake
# CUDA driver of the debug build.
check-tsan:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=debug all fakes
	$(STEP) BUILD=tsan check-run CHECKFLAGS="--cluster test_device $(CHECKFLAGS)"

# The fuzz targets, linked with libFuzzer's main. All code that they call has libFuzzer's counters.
FUZZ_S	?= 60
FUZZERS	:= $(patsubst tests/fuzz/%.c,$(B)/fuzzers/%,$(FUZZ))
$(FUZZERS): $(B)/fuzzers/%: $(B)/tests/fuzz/%.o $(LIBCORES) $(LIBCOMMON)
	$(call link,-fsanitize=fuzzer $(LIBS))
fuzzers: $(FUZZERS)
fuzz:
	$(Q)tests/install-deps.sh fuzz
	$(STEP) CC=clang BUILD=asan B=build/fuzz CFLAGS=-fsanitize=fuzzer-no-link fuzzers
	$(Q)tests/fuzz/run.sh build/fuzz/fuzzers $(FUZZ_S)

.PHONY: help demo test check-build check-asan check-tsan fuzzers fuzz

# Test the front-ends. Each front-end has its own Python environment below build/frontends. The
# environment is made once.
test-frontends:
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=debug all
	$(Q)python3 tests/frontends/run.py build/debug $(LISTS:%=--list %) $(if $(SHORT),--short)
.PHONY: test-frontends

# Run the daemons of the commit that tests/compatibility-mark names together with today's.
upgrade:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=debug all
	$(Q)$(PYTHON) tests/upgrade/mark.py
	$(Q)BPS_BUILD=$(CURDIR)/build/debug $(PYTHON) -m pytest -q -p no:cacheprovider \
		-n $$(nproc) tests/upgrade $(UPGRADE_ARGS)
# Check the manifests for Kubernetes. The schemas are in a Python environment below build/manifests,
# which is made once.
check-manifests:
	$(Q)tests/install-deps.sh frontends
	$(Q)python=$$(python3 tests/frontends/environment.py tests/manifests/requirements.txt \
		build/manifests) && $$python tests/manifests/check.py
# Build and test with the newer compiler, libraries and Python of Debian 13.
debian13:
	$(Q)tests/install-deps.sh debian13
	$(Q)tests/debian13.sh build/debian13
.PHONY: upgrade check-manifests debian13

# Tests and measurements that are too large or too slow to be a part of `make test`.
huge:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release all
	$(Q)BPS_BUILD=$(CURDIR)/build/release $(PYTHON) -m pytest -q -p no:cacheprovider \
		tests/cluster/huge.py
latency:
	$(Q)tests/install-deps.sh bench
	$(STEP) BUILD=release all
	$(Q)tests/bench/latency.py build/release --min-ratio 1.5
bench-build: all $(PROBEBIN) $(SCALEBIN)
bench-bars:
	$(Q)tests/install-deps.sh bench
	$(STEP) BUILD=release bench-build
	$(Q)tests/bench/bars build/release --out docs/results/performance $(BARS)
# Compare two kinds of training steps of PyTorch: steps over bps, and steps of
# DistributedDataParallel over Gloo.
bench-torch:
	$(Q)tests/install-deps.sh bench
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=release all
	$(Q)tests/bench/torch_steps.py build/release --out docs/results/performance/torch.md $(BARS)
# Compare two kinds of training steps of Keras: steps over bps, and steps of TensorFlow's
# MultiWorkerMirroredStrategy. Also measure what a call of bps.tensorflow and a call of bps.jax
# cost, and how long sums of sparse tables take.
bench-frontends:
	$(Q)tests/install-deps.sh bench
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=release all
	$(Q)tests/bench/keras_steps.py build/release --out docs/results/performance/keras.md
	$(Q)tests/bench/frontend_calls.py build/release --out docs/results/performance/calls.md
	$(Q)tests/bench/sparse.py build/release --out docs/results/performance/sparse.md
	$(Q)tests/bench/collectives.py build/release --out docs/results/performance/broadcast.md
	$(Q)tests/bench/torch_steps.py build/release --only zero \
		--out docs/results/performance/zero.md
# Compare the accuracy of training with gradients in blocks with that of training with float32.
accuracy:
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=release all
	$(Q)tests/bench/accuracy.py build/release --out docs/results/accuracy.md $(BARS)
# Compare DiLoCo and late gradients with gradients that are averaged in each step.
recipes:
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=release all
	$(Q)tests/bench/recipes.py build/release --out docs/results/recipes.md $(BARS)
# Compare bounds of asynchronous training.
asynchronous:
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=release all
	$(Q)tests/bench/asynchronous.py build/release --out docs/results/asynchronous.md $(BARS)
# Compare training with a backup machine with training in step.
late:
	$(Q)tests/install-deps.sh frontends
	$(STEP) BUILD=release all
	$(Q)tests/bench/late.py build/release --out docs/results/late.md $(BARS)
.PHONY: huge latency bench-build bench-bars bench-torch bench-frontends accuracy recipes
.PHONY: asynchronous late

# Run, one after the other, the slow targets that .ci/run leaves out and that are red or due, as
# many as fit in MINUTES (60). ONLY=a,b runs only targets a and b.
everything:
	$(Q)$(PYTHON) tests/everything.py $(if $(ONLY),--only $(ONLY)) \
		$(if $(MINUTES),--minutes $(MINUTES))
.PHONY: everything

# Target `matrix` injects every kind of fault into real processes of every kind. The target needs
# root, because it makes network namespaces. FM_TYPE in the environment chooses the kind of its
# jobs' tensors: blocks (q8, q4), tensors in shards (shards), workers that abstain (abstain), values
# with a bound (value).
REPEAT	?= 20
SHARD	?= 1/1
MATRIX_MINUTES ?= 55
MATRIX_TABLE ?= docs/results/fault-matrix.md
AT_ONCE	?= $(shell echo $$((2 * $$(nproc))))
matrix:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release all
	$(Q)$(PYTHON) tests/faults/matrix.py build/release --repeat $(REPEAT) --shard $(SHARD) \
		--minutes $(MATRIX_MINUTES) --at-once $(AT_ONCE) --table $(MATRIX_TABLE) \
		$(if $(MATRIX_RECORDS),--records $(MATRIX_RECORDS))
# Target `chaos` runs three jobs under random faults for $(SECONDS) seconds. Target `crashes` kills
# trainers. Target `noticed` measures how soon a crash is detected.
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

# Test libfabric's provider `verbs` on the kernel of an emulated machine.
QEMU_ONLY ?=
qemu:
	$(Q)tests/install-deps.sh qemu
	$(STEP) BUILD=debug all build/debug/tests/test_fabric build/debug/tests/test_net
	$(Q)tests/qemu/run.sh build/debug build/qemu $(QEMU_ONLY)
.PHONY: qemu

# Static analysis has a build folder of its own, so that only changed files are checked again. gcc's
# analyser runs while the objects are compiled. A file X.tidy records that clang-tidy found X.c
# clean. Unit tests are excluded from gcc's analyser and from cppcheck, because cmocka's assertions
# leave a test by a jump that these tools do not see. The leak check of gcc 12 is off, because it
# reports memory on a list or in the caller's struct as leaked. LeakSanitizer finds leaks instead.
# clang's analyser takes most of the time of clang-tidy. It checks the unit tests only with DEEP=1.
LINT_SRC := $(sort $(ALLSRC))
LINT_C	:= $(shell git ls-files '*.c' '*.h' 2>/dev/null)
LINT_SH	:= $(shell git ls-files '*.sh' .ci/run tests/hooks 2>/dev/null)
LINT_MAN := $(wildcard docs/man/*.[1-8])
LINT_UNITS := $(wildcard systemd/*.service systemd/*.socket)
TIDY_CHECKS = $(if $(DEEP),,$(if $(filter tests/unit/%,$<),--checks='-clang-analyzer-*'))
LINT_INC = $(if $(filter common/base/error.c libbpsclient/last_error.c,$<),,-include tests/lint.h)
ifdef ANALYZE # (LINT is a variable of make itself)
# Headers with macros that cppcheck needs in order to parse our sources.
LINT_H	:= $(filter %/queue.h %/jansson.h,$(shell printf '\043include <%s>\n' \
	sys/queue.h jansson.h | $(CC) $(PKG_CFLAGS) -E -M -xc -))
ISA = $(if $(filter tests/unit/%,$<),,-fanalyzer -Wno-analyzer-malloc-leak $(LINT_INC))
endif
$(B)/%.tidy: %.c $(B)/%.o .clang-tidy tests/lint.h
	$(call say,TIDY,$<)
	$(Q)clang-tidy --quiet $(TIDY_CHECKS) $< -- -std=gnu11 -I. -D_GNU_SOURCE \
		-DBPS_VERSION='"0"' $(LINT_INC) $(PKG_CFLAGS) $(CUDA_CFLAGS) \
		2>$@.err || { cat $@.err; exit 1; }
	$(Q)touch $@

lint-format:
	$(Q)echo $(LINT_C) | xargs -n 40 -P 2 clang-format --dry-run -Werror
# Check that folders include only what the design allows, and that each name is unique.
lint-layers:
	$(Q)$(PYTHON) tests/layers.py
lint-names:
	$(Q)$(PYTHON) tests/unique_names.py
# Check that comments and documents are in plain English.
lint-prose:
	$(Q)$(PYTHON) tests/prose.py
# Check the types of the Python package. mypy is in a Python environment below build/mypy, which is
# made once.
lint-types:
	$(Q)python=$$(python3 tests/frontends/environment.py tests/mypy.txt \
		$(CURDIR)/build/mypy) && cd libbpsclient/python && \
		$$python -m mypy --cache-dir $(CURDIR)/build/mypy/cache --no-error-summary
lint-cppcheck:
	$(Q)cppcheck --quiet -j 2 $(addprefix --include=,$(LINT_H)) \
		--enable=warning,performance,portability --inline-suppr --std=c11 \
		--error-exitcode=1 --suppress=varFuncNullUB -I. -D_GNU_SOURCE -D__x86_64__ \
		-DBPS_VERSION='"0"' $(filter-out tests/unit/%,$(LINT_SRC))
lint-shell:
	$(Q)shellcheck $(LINT_SH)
lint-man:
	$(Q)mandoc -T lint -W warning $(LINT_MAN)
# Limit of each unit's exposure, in tenths. If systemd-analyze security reports a higher exposure,
# the check fails. The value 100 means no protection.
EXPOSURES = $(addprefix systemd/bps-,scheduler:13 server:20 agent:23) $(B)/bps-agent:23
lint-units:
	$(Q)out=$$(systemd-analyze verify $(LINT_UNITS) 2>&1 | \
		grep -v -e 'is not executable: No such file' -e "Command 'man bps"); \
		[ -z "$$out" ] || { echo "$$out"; exit 1; } # programs may not be installed here
	$(Q)mkdir -p $(B) && cat systemd/bps-agent.service systemd/bps-agent-cuda.conf \
		>$(B)/bps-agent.service # systemd reads the drop-in last, too
	$(Q)for limit in $(EXPOSURES); do systemd-analyze security --offline=true --no-pager \
		--threshold=$${limit#*:} $${limit%:*}.service >$(B)/exposure || \
		{ cat $(B)/exposure; exit 1; }; done
lint-rules:
	$(Q)cd systemd/prometheus && promtool check config prometheus.yml >/dev/null && \
		promtool test rules bps-alerts.test.yml >/dev/null
lint-tidy: $(patsubst %.c,$(B)/%.tidy,$(LINT_SRC))
LINTS	:= $(addprefix lint-,format layers names prose types cppcheck shell man units rules tidy)
lint-all: $(LINTS)
	@echo 'lint: clean'
lint:
	$(Q)tests/install-deps.sh lint
	$(STEP) -k BUILD=debug B=build/lint$(if $(DEEP),-deep) ANALYZE=1 lint-all

hooks:
	$(Q)install -m 755 tests/hooks/commit-msg "$$(git rev-parse --git-path hooks)/commit-msg"

.PHONY: hooks lint lint-all $(LINTS)
