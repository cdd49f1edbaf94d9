# Programs that need a GPU, and their bundle for a machine that has one. Included by the Makefile.
# Built on request only, where the CUDA toolkit is. docs/guides/gpu-tests.md explains each run.
NVCC	?= $(wildcard $(CUDA_HOME)/bin/nvcc)
GPU_COMMON := tests/gpu/gpu.c tests/gpu/sides.c
GPU_A	:= $(call src,tests/gpu/a*.c)
GPU_B	:= $(call src,tests/gpu/b*.c)
GPUBINS	:= $(if $(filter yes,$(CUDA)),$(addprefix $(B)/tests/gpu/,a b d))

$(call objs,$(GPU_A) $(GPU_B) tests/gpu/d.c $(GPU_COMMON)): ISA += $(CUDA_CFLAGS)
$(B)/tests/gpu/a: $(call objs,$(GPU_A) $(GPU_COMMON))
$(B)/tests/gpu/b: $(call objs,$(GPU_B) $(GPU_COMMON))
$(B)/tests/gpu/a $(B)/tests/gpu/b:
	$(call link,-ldl)
# The product's back-end, linked as in the product.
$(B)/tests/gpu/d: $(call objs,tests/gpu/d.c $(GPU_COMMON) $(CUDASRC)) $(LIBCORES) $(LIBCOMMON)
	$(call link,-L$(CUDA_STUB) -lcuda -ldl $(LIBS))

# Kernels as PTX, which every driver compiles for its GPU. They use no new features: drivers older
# than the toolkit would refuse the version that nvcc writes. Without nvcc, run B reports it.
ifneq ($(NVCC),)
GPU_PTX	:= $(B)/tests/gpu/kernels.ptx
$(GPU_PTX): tests/gpu/kernels.cu
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) -arch=compute_75 -O3 -ptx -o $@.new $< && \
		sed 's/^\.version .*/.version 6.5/' $@.new >$@ && rm $@.new
$(B)/tests/gpu/gpu.o: ISA += -DBPS_GPU_PTX='"$(GPU_PTX)"'
$(B)/tests/gpu/gpu.o: $(GPU_PTX)
endif

ifeq ($(CUDA),yes)
ALLSRC	+= $(GPU_A) $(GPU_B) tests/gpu/d.c $(GPU_COMMON)
check-build: $(GPUBINS) $(FAKELIBS)
endif
gpu-tests-run: $(GPUBINS)
	@$(if $(GPUBINS),,echo 'make gpu-tests: no CUDA toolkit with NCCL in' \
		'$(CUDA_HOME) (CUDA_HOME)' >&2; exit 1)

