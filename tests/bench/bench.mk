# bps-probe (tests/bench/probe) measures the parts of a push_pull. tests/bench/bars runs bps-probe.
PROBE	:= $(call src,tests/bench/probe/*.c)
PROBEBIN := $(B)/tests/bps-probe
# plain.c has the plain loops. bps-probe compares their speed with the speed of the server's sums.
# The loops may use all instructions of this machine.
$(B)/tests/bench/probe/plain.o: ISA := -O3 -march=native -ffp-contract=off
$(PROBEBIN): $(call objs,$(PROBE)) $(LIBCORES) $(LIBCOMMON)
	$(call link,$(LIBS))
