# Test programs that need a GPU. The Makefile includes this file. The programs are built only on
# request, and only if the CUDA toolkit is installed. tests/gpu/pack bundles the programs for a
# machine with a GPU. docs/guides/gpu-tests.md explains each run.
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
# The program of run D contains the agent's own CUDA back-end, and links the libraries of
# bps-agent-cuda.
$(B)/tests/gpu/d: $(call objs,tests/gpu/d.c $(GPU_COMMON) $(CUDASRC)) $(LIBCORES) $(LIBCOMMON)
	$(call link,-L$(CUDA_STUB) -lcuda -ldl $(LIBS))

# The kernels as PTX, which every driver compiles for its GPU. nvcc writes a PTX version number that
# older drivers reject, so sed replaces this number by a lower one. This is safe, because the
# kernels use no new features. If nvcc is missing, the program of run B reports that there are no
# kernels.
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

