# The CUDA back-end, and fake libraries that replace the driver and NCCL in its tests. Included by
# the Makefile. If CUDA=no is set or the toolkit is missing, nothing in this file is built, and
# `all` prints a notice.
CUDA_HOME ?= /usr/local/cuda
NCCL_H	:= $(firstword $(wildcard $(addsuffix /nccl.h,$(CUDA_HOME)/include /usr/include \
	   /usr/local/include)))
CUDA_FOUND := $(wildcard $(addprefix $(CUDA_HOME)/,include/cuda.h lib64/stubs/libcuda.so)) $(NCCL_H)
CUDA	?= $(if $(filter 3,$(words $(CUDA_FOUND))),yes,no)
CUDA_CFLAGS := -isystem $(CUDA_HOME)/include
CUDA_STUB := $(CUDA_HOME)/lib64/stubs

, := ,
FAKECUDA := $(addprefix tests/gpu/fake/,core.c device.c memory.c legacy.c stream.c copy.c extra.c)
FAKENCCL := $(addprefix tests/gpu/fake/,nccl.c elem.c)
CUDAMAIN := bps-agent/executor/cuda_main.c
CUDASRC	:= $(call src,bps-agent/executor/device/cuda*.c)
CUDATEST	:= $(call src,tests/gpu/cuda/test_*.c)
CUDAHELP	:= $(addprefix tests/gpu/cuda/,rig.c share_ptr.c two.c)
CUDAALL	:= $(FAKECUDA) $(FAKENCCL) $(CUDASRC) $(CUDAMAIN) $(CUDATEST) $(CUDAHELP) \
	   tests/gpu/cuda/probe.c
FAKELIBS := $(B)/fake/libcuda.so.1 $(B)/fake/libnccl.so.2
# Build the fake libraries if CUDA is "yes", the default where the toolkit with NCCL is installed.
fakes: $(if $(filter yes,$(CUDA)),$(FAKELIBS))
.PHONY: fakes
CUDATESTS	:= $(patsubst tests/gpu/cuda/%.c,$(B)/tests/%,$(CUDATEST))

ifeq ($(CUDA),yes)
ALLSRC	+= $(CUDAALL)
$(call objs,$(CUDAALL)): ISA += $(CUDA_CFLAGS)

# libbpsclient uses the CUDA driver that its process has loaded already. To compile libbpsclient,
# only the types of the toolkit are needed.
$(B)/libbpsclient/gpu_cuda.o: ISA += $(CUDA_CFLAGS)

# The fake libraries have the file names by which programs find the driver and NCCL.
$(B)/fake/libcuda.so.1: $(call objs,$(FAKECUDA))
$(B)/fake/libnccl.so.2: $(call objs,$(FAKENCCL)) $(B)/fake/libcuda.so.1
$(FAKELIBS):
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,$(@F) -o $@ \
		$(filter %.o,$^) $(filter %.so.1,$^) -lm -lpthread

# The tests need an RPATH, because a sanitizer's dlopen ignores the RUNPATH of its caller.
$(CUDATESTS): $(B)/tests/%: $(B)/tests/gpu/cuda/%.o $(call objs,$(CUDAHELP) $(CUDASRC)) \
		$(LIBCORES) $(LIBCOMMON) $(FAKELIBS) $(B)/tests/gpu-probe
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS_ALL) -Wl,--disable-new-dtags \
		-Wl,-rpath,'$$ORIGIN/../fake' -o $@ $(filter %.o,$^) $(LIBCORES) $(LIBCOMMON) \
		$(B)/fake/libcuda.so.1 $(NCCLLIB) -lcmocka -Wl,--as-needed $(LIBS) -ldl
$(B)/tests/test_fake_cuda: NCCLLIB := $(B)/fake/libnccl.so.2
# gpu-probe is linked like bps-agent-cuda, so that gpu-probe uses the driver of the machine.
$(B)/tests/gpu-probe: $(call objs,tests/gpu/cuda/probe.c $(CUDASRC)) $(LIBCORES) $(LIBCOMMON)
	$(call link,-L$(CUDA_STUB) -lcuda -Wl$(,)--as-needed $(LIBS) -ldl)
	$(Q)mkdir -p $(B)/stub && ln -sf $(abspath $(CUDA_STUB))/libcuda.so $(B)/stub/libcuda.so.1

# The executor: a program that bps-agent starts.
$(B)/bps-agent/bps-agent-cuda: $(call objs,$(DEVICE) $(CUDASRC) $(CUDAMAIN)) $(LIBCOMMON)
	$(call link,-L$(CUDA_STUB) -lcuda -Wl$(,)--as-needed $(LIBS) -ldl)
EXECUTORS += $(B)/bps-agent/bps-agent-cuda
all: $(B)/bps-agent/bps-agent-cuda

check-build: $(CUDATESTS)
else
# Without CUDA, ignore cuda.h, even if the compiler finds one in its default folders.
$(call objs,libbpsclient/gpu_cuda.c): ISA += -DBPS_NO_CUDA
NO_CUDA	:= $(if $(filter command environment,$(origin CUDA)),CUDA=$(CUDA),no CUDA toolkit with \
	   NCCL in $(CUDA_HOME) (CUDA_HOME))
all: no-cuda
no-cuda:
	@echo 'bps-agent-cuda is not built: $(NO_CUDA)'
.PHONY: no-cuda
endif
