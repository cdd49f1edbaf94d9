# What a push_pull is made of, each measured alone (tests/bench/probe), for the bars of tests/bench/bars.
PROBE	:= $(call src,tests/bench/probe/*.c)
PROBEBIN := $(B)/tests/bps-probe
# The loop to compare with gets all that this machine has.
$(B)/tests/bench/probe/plain.o: ISA := -O3 -march=native -ffp-contract=off
$(PROBEBIN): $(call objs,$(PROBE)) $(LIBCORES) $(LIBCOMMON)
	$(call link,$(LIBS))
