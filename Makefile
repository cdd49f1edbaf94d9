# A non-recursive Makefile. BUILD=debug|release|asan|tsan|cov, CC=gcc|clang, V=1 shows commands,
# WERROR=1 makes warnings errors.
# `make help` lists the targets.
BUILD	?= release
PREFIX	?= /usr/local
LIBDIR	?= $(PREFIX)/lib
UNITDIR	?= $(PREFIX)/lib/systemd/system
DESTDIR	?=
# Programs look for the library in two folders: the program's own folder, for the build tree, and
# ../lib, for an installed tree.
RPATH	?= -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib'
VERSION	:= 0.1.0

B	:= build/$(BUILD)
Q	:= $(if $(V),,@)
say	= $(if $(V),,@printf '  %-7s %s\n' '$(1)' '$(2)')

PKGS	:= libuv libevent libevent_openssl jansson openssl
PKG_CFLAGS := $(shell pkg-config --cflags libfabric $(PKGS) 2>/dev/null)
# Programs do not link libfabric. They load it when it is needed
# (common/transport/fabric/libfabric.h).
LIBS	:= $(shell pkg-config --libs $(PKGS) 2>/dev/null) -ldl -linih -lnuma -lm -lpthread

WARN	:= -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 \
	   -Wvla -Wundef -Wwrite-strings -Wpointer-arith $(if $(filter 1,$(WERROR)),-Werror)
OPT_debug	:= -O1 -g
OPT_release	:= -O2 -g -D_FORTIFY_SOURCE=2 -fstack-protector-strong
OPT_asan	:= -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
	   -fno-sanitize-recover=undefined
OPT_tsan	:= -O1 -g -fsanitize=thread
OPT_cov		:= -O0 -g --coverage
ifeq ($(origin OPT_$(BUILD)),undefined)
$(error BUILD=$(BUILD) is not one of debug release asan tsan cov)
endif
CFLAGS_ALL := -std=gnu11 $(WARN) $(OPT_$(BUILD)) -fPIC -fvisibility=hidden -I. -D_GNU_SOURCE \
	   -DBPS_VERSION='"$(VERSION)"' $(PKG_CFLAGS) $(CPPFLAGS) $(CFLAGS)
LDFLAGS_ALL := $(OPT_$(BUILD)) -Wl,-z,relro,-z,now $(LDFLAGS)

objs	= $(patsubst %.c,$(B)/%.o,$(1))
src	= $(sort $(wildcard $(1)))
# List all C sources below a folder.
tree	= $(sort $(shell find $(1) -name '*.c'))

COMMON	:= $(call tree,common)
SCHED	:= $(filter-out bps-scheduler/bpsctl/%,$(call tree,bps-scheduler))
SERVER	:= $(call tree,bps-server)
AGENT	:= $(filter-out bps-agent/executor/%,$(call tree,bps-agent))
# The executor is the agent's process that drives GPUs. Only its files cuda* need the CUDA toolkit.
# Its other files compile without the toolkit.
DEVICE	:= $(filter-out bps-agent/executor/device/cuda% bps-agent/executor/cuda_main.c, \
	   $(call tree,bps-agent/executor))
# An executor for tests that emulates GPUs in plain memory.
HOSTEXEC := $(call tree,tests/host_executor)
CTL	:= $(call tree,bps-scheduler/bpsctl)
CLIENT	:= $(call src,libbpsclient/*.c libbpsclient/base/*.c) common/wire/codec.c \
	   common/wire/shape_layout.c \
	   $(addprefix common/data/,dtype.c shape.c copy_nontemporal.c simd.c \
	   block.c block_avx2.c block_avx512.c convert.c convert_avx2.c convert_avx512.c) \
	   $(addprefix common/local/,cause_file.c local.c local_gpu.c) common/os/cgroup.c \
	   common/os/fd_passing.c common/os/file_save.c \
	   $(addprefix common/base/,duration.c error.c failpoint.c first_line.c \
	   nearest_name.c)
TOOLS	:= $(filter-out libbpsclient/tools/keep/%,$(call tree,libbpsclient/tools))
KEEP	:= $(call src,libbpsclient/tools/keep/*.c libbpsclient/tools/process/*.c)
EXAMPLES := $(call src,libbpsclient/examples/*.c)
UNIT	:= $(sort $(shell find tests/unit -name 'test_*.c'))
UNITLIB	:= $(filter-out $(UNIT),$(call tree,tests/unit tests/invariants))
SIM	:= $(call src,tests/sim/*.c)
SCALE	:= $(call src,tests/scale/*.c)
LOAD	:= $(call src,tests/load/*.c)
FUZZ	:= $(call src,tests/fuzz/fuzz_*.c)
BENCH	:= $(call src,tests/bench/*.c)
ALLSRC	:= $(COMMON) $(SCHED) $(SERVER) $(AGENT) $(DEVICE) $(HOSTEXEC) $(CTL) $(CLIENT) \
	   $(TOOLS) $(KEEP) $(EXAMPLES) $(UNIT) $(UNITLIB) $(SIM) $(SCALE) $(LOAD) $(FUZZ) \
	   tests/fuzz/replay.c $(BENCH) $(call src,tests/bench/probe/*.c)

cores	= $(filter-out %/main.c,$(1))
LIBCOMMON := $(B)/libcommon.a
LIBCORES := $(B)/libcores.a
DAEMONS	:= $(foreach d,bps-scheduler bps-server bps-agent, \
	   $(if $(wildcard $(d)/main.c),$(B)/$(d)/$(d)))
EXECUTORS :=
HOSTEXECBIN := $(B)/tests/bps-agent-host
BPSCTL	:= $(if $(CTL),$(B)/bpsctl)
LIBBPS	:= $(if $(wildcard libbpsclient/*.c),$(B)/libbpsclient.so.0)
TOOLBINS := $(if $(TOOLS),$(B)/bpsrun)
KEEPBIN	:= $(if $(KEEP),$(B)/bps-keep)
EXAMPLEBINS := $(patsubst libbpsclient/examples/%.c,$(B)/%,$(EXAMPLES))
UNITBINS := $(patsubst %.c,$(B)/tests/%,$(notdir $(UNIT)))
FUZZBINS := $(patsubst tests/fuzz/%.c,$(B)/tests/%,$(FUZZ))
BENCHBIN := $(B)/bps-bench

all: $(DAEMONS) $(EXECUTORS) $(BPSCTL) $(LIBBPS) $(TOOLBINS) $(KEEPBIN) $(EXAMPLEBINS) \
	$(BENCHBIN) $(HOSTEXECBIN)

# Sums must have the same bits with every instruction set, so the compiler may not use fused
# multiply-add. With -O3 the compiler unrolls loops, which makes the sums a tenth faster. The
# compiler vectorizes `x < y ? a : b` on floats only if comparisons cannot trap.
KERNELS := $(addprefix common/data/,block.o convert.o reduce.o)
KERNEL_FLAGS := -O3 -ffp-contract=off -fno-trapping-math
AVX2_FLAGS := -mavx2 -mfma -mf16c
AVX512_FLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c

include tests/sim/sim.mk
include tests/scale/scale.mk
include tests/bench/bench.mk
include tests/gpu/cuda.mk
include tests/gpu/gpu.mk
include tests/tests.mk
include tests/mutation/mutation.mk
include systemd/deb.mk
include systemd/image.mk
include libbpsclient/python/wheel.mk
include docs/docs.mk

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA) -MMD -MP -c -o $@ $<

# A single object file contains the commit. It is compiled again when the commit changes.
# Archives of `make dist` have it in the file .commit, since they have no repository.
COMMIT	?= $(or $(shell cat .commit 2>/dev/null || git rev-parse --short=12 HEAD 2>/dev/null), \
	   unknown)
$(B)/common/base/version.o: ISA := -DBPS_COMMIT='"$(COMMIT)"'
$(B)/common/base/version.o: $(B)/commit
$(B)/commit: FORCE
	$(Q)mkdir -p $(@D)
	$(Q)[ "$$(cat $@ 2>/dev/null)" = "$(COMMIT)" ] || echo "$(COMMIT)" >$@
.PHONY: FORCE

$(addprefix $(B)/,$(KERNELS)): ISA := $(KERNEL_FLAGS)
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
$(B)/common/data/%_avx2.o: ISA := $(KERNEL_FLAGS) $(AVX2_FLAGS)
$(B)/common/data/%_avx512.o: ISA := $(KERNEL_FLAGS) $(AVX512_FLAGS)
endif

$(LIBCOMMON): $(call objs,$(COMMON))
$(LIBCORES): $(call objs,$(call cores,$(SCHED) $(SERVER) $(AGENT) $(DEVICE) $(CTL) $(HOSTEXEC)) \
		$(UNITLIB))
$(LIBCOMMON) $(LIBCORES):
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) qcs $@ $(filter %.o,$^)

define link
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(filter %.a,$^) \
		$(filter %.so.0,$^) $(1)
endef

$(B)/bps-scheduler/bps-scheduler: $(call objs,$(SCHED)) $(LIBCOMMON)
$(B)/bps-server/bps-server: $(call objs,$(SERVER)) $(LIBCOMMON)
$(B)/bps-agent/bps-agent: $(call objs,$(AGENT) $(addprefix bps-agent/executor/plan/,report.c \
		strategy.c topology.c)) $(LIBCOMMON)
$(BPSCTL): $(call objs,$(CTL)) $(LIBCOMMON)
$(DAEMONS) $(BPSCTL):
	$(call link,$(LIBS))
$(HOSTEXECBIN): $(call objs,$(HOSTEXEC) $(DEVICE)) $(LIBCOMMON)
	$(call link,-lpthread)

$(LIBBPS): $(call objs,$(CLIENT)) libbpsclient/libbpsclient.map
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,libbpsclient.so.0 \
		-Wl,--version-script=libbpsclient/libbpsclient.map -o $@ $(filter %.o,$^) -lpthread
	$(Q)ln -sf libbpsclient.so.0 $(B)/libbpsclient.so

$(TOOLBINS): $(call objs,$(TOOLS)) $(LIBCOMMON)
$(KEEPBIN): $(call objs,$(KEEP)) $(LIBCOMMON)
$(TOOLBINS) $(KEEPBIN):
	$(call link,$(LIBS))
$(EXAMPLEBINS): $(B)/%: $(B)/libbpsclient/examples/%.o $(LIBBPS)
	$(call link,$(RPATH) -lm -lpthread)
$(BENCHBIN): $(call objs,$(BENCH)) $(LIBBPS)
	$(call link,$(RPATH) -lm -lpthread)
# Sources of unit tests lie in folders named after the tested modules. The programs of all unit
# tests are built into one folder.
$(foreach t,$(UNIT),$(eval $(B)/tests/$(basename $(notdir $(t))): $(t:%.c=$(B)/%.o)))
$(UNITBINS): $(LIBCORES) $(LIBCOMMON) $(call objs,$(CLIENT) libbpsclient/tools/nodes/nodelist.c)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) $(LDFLAGS_ALL) -o $@ \
		$(filter $(B)/tests/unit/%.o $(B)/libbpsclient/%.o,$^) \
		$(LIBCORES) $(LIBCOMMON) -lcmocka $(LIBS)
$(FUZZBINS): $(B)/tests/%: $(B)/tests/fuzz/%.o $(B)/tests/fuzz/replay.o $(LIBCORES) $(LIBCOMMON)
	$(call link,$(LIBS))

# Generate a settings file for each daemon, with every setting commented out.
CONFS	:= $(patsubst %,$(B)/conf/%.conf,scheduler server agent)
$(CONFS): $(B)/conf/%.conf: $(DAEMONS) systemd/conf.awk
	$(call say,GEN,$@)
	$(Q)mkdir -p $(@D) && $(B)/bps-$*/bps-$* --help >$@.help
	$(Q)awk -v program=bps-$* -f systemd/conf.awk $@.help >$@.new && rm $@.help && mv $@.new $@

# Install the build that BUILD names. The units are installed below PREFIX, because systemd also
# finds units in /usr/local/lib/systemd/system. Nothing is installed in /etc, whose files belong to
# the administrator and to packages.
SBIN	= $(DESTDIR)$(PREFIX)/sbin
BIN	= $(DESTDIR)$(PREFIX)/bin
LIB	= $(DESTDIR)$(LIBDIR)
UNITS	= $(DESTDIR)$(UNITDIR)
SHARE	= $(DESTDIR)$(PREFIX)/share
install: all $(CONFS)
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)install -d $(SBIN) $(BIN) $(LIB)/pkgconfig $(DESTDIR)$(PREFIX)/include $(UNITS) \
		$(addprefix $(DESTDIR)$(PREFIX)/lib/,sysusers.d tmpfiles.d) \
		$(SHARE)/bps/prometheus \
		$(SHARE)/bash-completion/completions $(SHARE)/doc/bps/examples \
		$(addprefix $(SHARE)/man/man,1 3 5 7 8)
	$(Q)install -m 755 $(DAEMONS) $(EXECUTORS) $(KEEPBIN) $(SBIN)
	$(Q)install -m 755 $(BPSCTL) $(TOOLBINS) $(EXAMPLEBINS) $(BENCHBIN) $(BIN)
	$(Q)install -m 644 $(LIBBPS) $(LIB)
	$(Q)ln -sf libbpsclient.so.0 $(LIB)/libbpsclient.so
	$(Q)sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
		libbpsclient/libbpsclient.pc.in >$(LIB)/pkgconfig/libbpsclient.pc
	$(Q)install -m 644 libbpsclient/bps.h $(DESTDIR)$(PREFIX)/include
	$(Q)cd libbpsclient/python && \
		for f in $$(find bps -name '*.py') bps/py.typed \
		bpsclient.dist-info/entry_points.txt; do \
		install -D -m 644 $$f $(SHARE)/bps/python/$$f || exit; done
	$(Q)sed 's|@VERSION@|$(VERSION)|' libbpsclient/python/bpsclient.dist-info/METADATA.in \
		>$(SHARE)/bps/python/bpsclient.dist-info/METADATA
	$(Q)install -m 644 libbpsclient/examples/digits.csv libbpsclient/examples/README.md \
		$(SHARE)/bps
	$(Q)install -D -m 644 -t $(SHARE)/bps/pytorch libbpsclient/examples/pytorch/*.py
	$(Q)install -m 644 $(CONFS) $(SHARE)/doc/bps/examples
	$(Q)for u in $(notdir $(wildcard systemd/*.service systemd/*.socket)); do \
		sed 's|/usr/sbin/|$(PREFIX)/sbin/|g' systemd/$$u >$(UNITS)/$$u && \
		chmod 644 $(UNITS)/$$u || exit; done
	$(Q)sed -f systemd/server-per-card.sed $(UNITS)/bps-server.service \
		>$(UNITS)/bps-server@.service && chmod 644 $(UNITS)/bps-server@.service
	$(Q)$(if $(filter %-cuda,$(EXECUTORS)),install -d $(UNITS)/bps-agent.service.d && \
		sed 's|/usr/sbin/|$(PREFIX)/sbin/|g' systemd/bps-agent-cuda.conf \
			>$(UNITS)/bps-agent.service.d/bps-agent-cuda.conf && \
		chmod 644 $(UNITS)/bps-agent.service.d/bps-agent-cuda.conf)
	$(Q)install -m 644 systemd/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/bps.conf
	$(Q)install -m 644 systemd/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/bps.conf
	$(Q)install -m 644 systemd/completion/* $(SHARE)/bash-completion/completions
	$(Q)install -m 644 docs/reference/status.schema.json $(SHARE)/bps
	$(Q)install -m 644 systemd/prometheus/* $(SHARE)/bps/prometheus
	$(Q)for s in 1 3 5 7 8; do install -m 644 docs/man/*.$$s $(SHARE)/man/man$$s || exit; done
	$(Q)sh docs/man/links.sh $(SHARE)/man

# Remove the files that `make install` would install now. Folders stay.
uninstall:
	$(Q)rm -rf $(B)/uninstall
	$(Q)$(MAKE) -s install DESTDIR=$(B)/uninstall
	$(call say,REMOVE,$(DESTDIR)$(PREFIX))
	$(Q)cd $(B)/uninstall && find . ! -type d -printf '%P\n' | sed 's|^|$(DESTDIR)/|' | \
		xargs -d '\n' rm -f
	$(Q)rm -rf $(B)/uninstall

clean:
	$(Q)rm -rf build

# Write an archive of the sources at HEAD, and its digest. Changes that are not committed are left
# out. The same commit gives the same bytes: all times are the commit's.
DIST	?= build/dist
DIST_NAME := bps-$(VERSION)
dist:
	$(call say,DIST,$(DIST)/$(DIST_NAME).tar.gz)
	$(Q)rm -rf $(DIST) && mkdir -p $(DIST)
	$(Q)git -c tar.umask=0022 archive --format=tar --prefix=$(DIST_NAME)/ \
		--add-virtual-file=$(DIST_NAME)/.commit:$$(git rev-parse --short=12 HEAD) \
		-o $(DIST)/$(DIST_NAME).tar HEAD
	$(Q)gzip -9n $(DIST)/$(DIST_NAME).tar
	$(Q)cd $(DIST) && sha256sum $(DIST_NAME).tar.gz >SHA256SUMS && cat SHA256SUMS

.PHONY: all install uninstall clean dist
# Delete the target of a command that fails, so that the next run repeats the command and its error.
.DELETE_ON_ERROR:
.SECONDARY:
-include $(patsubst %.c,$(B)/%.d,$(ALLSRC))
