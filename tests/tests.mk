# Targets that install what is missing, test, lint and demonstrate. Included by the Makefile.
PYTHON	?= $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $(p) -c 'import numpy, pytest' 2>/dev/null && \
	   command -v $(p))) python3)
CHECKFLAGS ?=

help:
	@echo 'make             build everything into build/$$BUILD (BUILD=release|debug|asan|tsan|cov)'
	@echo 'make demo        install what is missing, build, train the example on a private cluster'
	@echo 'make test        install what is missing, build (debug and release), pass the tests'
	@echo 'make check       build and run the tests of this BUILD; CHECKFLAGS="--only WORD --no-cluster"'
	@echo 'make check-asan  all tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make check-tsan  unit tests, cores and ring under ThreadSanitizer'
	@echo 'make sim         100,000 simulated histories; make sim-mutants: what the simulator catches'
	@echo 'make lint        formatting, clang-tidy, cppcheck, gcc -fanalyzer, shellcheck, man pages'
	@echo 'make fuzz        each fuzz target for FUZZ_S seconds (60) with libFuzzer'
	@echo 'make huge        one tensor of more than 2^32 elements (needs 20 GiB of memory)'
	@echo 'make latency     4 KiB push_pull against Gloo, in one run'
	@echo 'make install     into $$DESTDIR$$PREFIX'

# Each step in a make of its own: what is found by pkg-config changes when packages are installed.
demo:
	@tests/install-deps.sh build
	@$(MAKE) --no-print-directory BUILD=release all
	@tests/demo.sh build/release

test:
	@tests/install-deps.sh test
	@$(MAKE) --no-print-directory BUILD=debug check

check: all check-build
	$(Q)$(PYTHON) tests/run.py $(B) $(CHECKFLAGS)
check-build: $(UNITBINS) $(FUZZBINS) $(SIMBIN)

check-asan:
	$(Q)$(MAKE) --no-print-directory BUILD=asan check
check-tsan:
	$(Q)TSAN_OPTIONS="suppressions=$(CURDIR)/tests/tsan.supp $$TSAN_OPTIONS" \
		$(MAKE) --no-print-directory BUILD=tsan check CHECKFLAGS="--no-cluster $(CHECKFLAGS)"

FUZZ_S	?= 60
fuzz:
	$(Q)tests/fuzz/run.sh $(FUZZ_S)

.PHONY: help demo test check check-build check-asan check-tsan fuzz
