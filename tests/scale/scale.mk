# The bandwidth simulator contains the daemons' own objects. tests/scale/stub.c replaces the
# functions for CRC and sums.
SCALEBIN := $(B)/tests/sim-scale
SCALE_OBJS := $(call objs,$(SCALE))
$(SCALEBIN): $(SCALE_OBJS) $(LIBCORES) $(LIBCOMMON)
	$(call link,$(LIBS))

# Print the tables of docs/results/scaling.md.
sim-scale-run: $(SCALEBIN)
	tests/scale/tables.sh $(SCALEBIN)

# A mutant is the program with one patched source file. The linker reads the patched file before the
# archives, and so does not take the original object from its archive.
SCALE_MUTANTS := $(patsubst tests/scale/mutants/%.patch,%,$(wildcard tests/scale/mutants/*.patch))
scale_mutant_src = $(shell sed -n 's,^--- a/,,p' tests/scale/mutants/$(1).patch)
define scale_mutant
$(B)/scale-mutants/$(1).c: tests/scale/mutants/$(1).patch $(call scale_mutant_src,$(1))
	@mkdir -p $$(@D)
	$(Q)patch -s -F0 -o $$@ $(call scale_mutant_src,$(1)) $$<
$(B)/scale-mutants/$(1): $(B)/scale-mutants/$(1).c $(SCALE_OBJS) $(LIBCORES) $(LIBCOMMON)
	$(call say,LD,$$@)
	$(Q)$(CC) $(CFLAGS_ALL) -Wno-unused $(LDFLAGS_ALL) -o $$@ $$< $(SCALE_OBJS) $(LIBCORES) \
		$(LIBCOMMON) $(LIBS)
endef
$(foreach m,$(SCALE_MUTANTS),$(eval $(call scale_mutant,$(m))))
sim-scale-mutants-run: $(addprefix $(B)/scale-mutants/,$(SCALE_MUTANTS))
	$(Q)for m in $^; do if $$m --check >$$m.log; then echo "$$m is not caught"; exit 1; fi; \
		grep -q '^FAIL' $$m.log || { echo "$$m did not run"; exit 1; }; \
		sed -n "s,^FAIL,$$(basename $$m):,p" $$m.log; done; \
		echo "$(words $(SCALE_MUTANTS)) mutants, all caught"

# A test of a real scheduler with 1,000 members, all of which one program simulates.
LOADBIN	:= $(B)/tests/sched-load
$(LOADBIN): $(call objs,$(LOAD)) $(LIBCOMMON)
	$(call link,$(LIBS))
sched-load-run: $(LOADBIN) $(B)/bps-scheduler/bps-scheduler
	$(LOADBIN) $(B)/bps-scheduler/bps-scheduler
