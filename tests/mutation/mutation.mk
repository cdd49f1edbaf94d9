# The mutation run: mutation.py changes the cores in small ways, and checks that the unit tests or
# the simulator notice each change. The cores are shared libraries here, so that for a change only
# one file is compiled and one library linked. For the unit tests, the cores are compiled with
# sanitizers, as in `make check-asan`. All other code is compiled without, because the run would
# take several times as long.
MUTATION ?=
MUTATION_LIB := $(B)/mutation/cores.so
MUTATION_SIM_LIB := $(B)/mutation/cores-sim.so
MUTATION_UNIT := $(filter tests/unit/bps-%,$(UNIT))
MUTATION_BINS := $(patsubst %.c,$(B)/mutation/%,$(notdir $(MUTATION_UNIT)))
MUTATION_OBJS := $(patsubst %.c,$(B)/mutation-obj/%.o,$(SIM_CORES))
MUTATION_SIM_OBJS := $(patsubst %.c,$(B)/sim-obj/%.o,$(SIM_CORES))

$(B)/mutation-obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(OPT_asan) -MMD -MP -c -o $@ $<
$(MUTATION_LIB): $(MUTATION_OBJS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(OPT_asan) -shared -Wl,-soname,$(@F) -o $@ $^
$(MUTATION_SIM_LIB): $(MUTATION_SIM_OBJS)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) -shared -Wl,-soname,$(@F) -o $@ $^
# The linker finds the functions of the cores in the shared library first, and so does not take
# their objects from the archive.
$(foreach t,$(MUTATION_UNIT),$(eval $(B)/mutation/$(basename $(notdir $(t))): $(t:%.c=$(B)/%.o)))
$(MUTATION_BINS): $(MUTATION_LIB) $(LIBCORES) $(LIBCOMMON) $(call objs,$(CLIENT))
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(OPT_asan) -Wl,--as-needed -o $@ \
		$(filter $(B)/tests/unit/%.o $(B)/libbpsclient/%.o,$^) \
		$(MUTATION_LIB) $(LIBCORES) $(LIBCOMMON) -lcmocka $(LIBS)
$(B)/mutation/sim: $(filter-out $(MUTATION_SIM_OBJS),$(SIM_OBJS)) $(MUTATION_SIM_LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(SIM_LIBS)
-include $(MUTATION_OBJS:.o=.d)

mutation-run: $(MUTATION_BINS) $(B)/mutation/sim
	$(Q)$(PYTHON) tests/mutation/mutation.py $(B) --sources '$(SIM_CORES)' \
		--unit-flags '$(OPT_asan)' --sim-flags '$(SIM_DEFS)' $(MUTATION) \
		-- $(CC) $(CFLAGS_ALL)
mutation:
	$(Q)tests/install-deps.sh test
	$(STEP) BUILD=release B=build/mutation CFLAGS=-fvisibility=default mutation-run
.PHONY: mutation mutation-run
