# Programs that need a GPU, and a bundle of them for a machine that has one. Included by the
# Makefile. They are built on request only, where the CUDA toolkit is installed.
# docs/guides/gpu-tests.md explains each run.
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
# Run D has the product's back-end, and is linked like the product.
$(B)/tests/gpu/d: $(call objs,tests/gpu/d.c $(GPU_COMMON) $(CUDASRC)) $(LIBCORES) $(LIBCOMMON)
	$(call link,-L$(CUDA_STUB) -lcuda -ldl $(LIBS))

# The kernels as PTX, which every driver compiles for its GPU. nvcc writes a PTX version that older
# drivers refuse, so it is replaced by an older version. The kernels use no new features. Without
# nvcc, run B reports that it has no kernels.
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

