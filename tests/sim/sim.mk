# The simulator. The cores are compiled again with very small limits, so that short histories reach
# all edge cases.
SIM_DEFS := -DWIRE_INLINE_MAX=256 -DPOOL_MIN_BYTES=512 -DSRV_SLICE_BYTES=512 -DSRV_STEP_VALUES=48 \
	-DAGT_STEP_VALUES=128 -DPOOL_SEGMENT_BYTES=8192 -DPLACE_ALIGN_ELEMS=16
SIM_CORES := $(call tree,bps-scheduler/model bps-scheduler/core bps-scheduler/placement \
	bps-server/core bps-agent/core)
SIM_COMMON := $(addprefix common/base/,duration.c error.c failpoint.c heap.c histogram.c key.c \
	log.c log_journal.c nearest_name.c) $(call tree,common/data common/wire)
SIM_OBJS := $(patsubst %.c,$(B)/sim-obj/%.o,$(SIM) $(SIM_CORES) $(SIM_COMMON) \
	$(addprefix tests/invariants/,agt_core_check.c sched_check.c srv_core_check.c))
SIM_LIBS := -lcrypto -lm -lpthread
SIMBIN	:= $(B)/tests/sim
SIM_SEEDS ?= 1..100000
SIM_10M_SEEDS ?= 1..10000000
SIM_JOBS ?= $(shell nproc)

$(B)/sim-obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(SIM_DEFS) $(ISA) -MMD -MP -c -o $@ $<
# Compile these files with -O3, because the oracle computes expected sums very often.
$(B)/sim-obj/tests/sim/oracle.o: ISA := -O3 -ffp-contract=off
$(addprefix $(B)/sim-obj/,$(KERNELS)): ISA := $(KERNEL_FLAGS)
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
$(B)/sim-obj/common/data/%_avx2.o: ISA := $(KERNEL_FLAGS) $(AVX2_FLAGS)
$(B)/sim-obj/common/data/%_avx512.o: ISA := $(KERNEL_FLAGS) $(AVX512_FLAGS)
endif
$(SIMBIN): $(SIM_OBJS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS_ALL) -o $@ $(SIM_OBJS) $(SIM_LIBS)
-include $(SIM_OBJS:.o=.d)

sim-run: $(SIMBIN)
	$(SIMBIN) --seeds $(SIM_SEEDS) --report
sim-long-run: $(SIMBIN)
	$(SIMBIN) --seeds 1..1000000 --report
# Uses SIM_JOBS processes. The default is one process per processor. The target continues a run that
# was stopped or that reached SIM_MINUTES.
sim-10m-run: $(SIMBIN)
	$(PYTHON) tests/sim/long.py $(SIMBIN) --seeds $(SIM_10M_SEEDS) --jobs $(SIM_JOBS) \
		$(if $(SIM_MINUTES),--minutes $(SIM_MINUTES)) --report docs/results/simulator.md
sim-check-run: $(SIMBIN)
	$(SIMBIN) --file tests/sim/seeds.txt --report
	$(SIMBIN) --seeds 1..3000 --report

# A mutant is the program with one source file patched, so that one rule of a core is missing.
MUTANTS	:= $(patsubst tests/sim/mutants/%.patch,%,$(wildcard tests/sim/mutants/*.patch))
MUTANTBINS := $(addprefix $(B)/tests/mutants/,$(MUTANTS))
mutant_src = $(shell sed -n 's,^--- a/,,p' tests/sim/mutants/$(1).patch)
define mutant
$(B)/mutants/$(1)/mutant.c: tests/sim/mutants/$(1).patch $(call mutant_src,$(1))
	@mkdir -p $$(@D)
	$(Q)patch -s -F0 -o $$@ $(call mutant_src,$(1)) $$<
$(B)/mutants/$(1)/mutant.o: $(B)/mutants/$(1)/mutant.c
	$(call say,CC,$$@)
	$(Q)$(CC) $(CFLAGS_ALL) -Wno-unused $(SIM_DEFS) -MMD -MP -c -o $$@ $$<
$(B)/tests/mutants/$(1): $(B)/mutants/$(1)/mutant.o $(SIM_OBJS)
	@mkdir -p $$(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $$@ $$< \
		$(filter-out $(B)/sim-obj/$(patsubst %.c,%.o,$(call mutant_src,$(1))),$(SIM_OBJS)) \
		$(SIM_LIBS)
endef
$(foreach m,$(MUTANTS),$(eval $(call mutant,$(m))))
-include $(MUTANTS:%=$(B)/mutants/%/mutant.d)
sim-mutants-run: $(MUTANTBINS)
	tests/sim/mutants.sh $(B)/tests/mutants
