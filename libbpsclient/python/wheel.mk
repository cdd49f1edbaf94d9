# The Python wheel. Included by the Makefile.
#
# The programs in the wheel are linked statically with their libraries, except those of glibc. So a
# machine needs only Python, and the programs cannot use the machine's versions of these libraries
# by mistake. Shared libraries in the wheel would need patched search paths, and would not be found
# if the environment were moved.
WHEEL	:= build/wheel
WHEEL_LIBS := -Wl,-Bstatic -luv_a -levent_openssl -levent -ljansson -linih -lnuma -lssl -lcrypto \
	-Wl,-Bdynamic -ldl -lm -lpthread
# Debian packages of the libraries above. The wheel contains the licences of these packages.
WHEEL_LICENSES := libuv1-dev libevent-dev libjansson-dev libinih-dev libnuma-dev libssl-dev
# Licences of the sources of bps and of these libraries, as an SPDX expression. libnuma is under the
# LGPL: who wants to change it in the programs links them again, with this Makefile.
WHEEL_SPDX := Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND ISC AND LGPL-2.1-only AND MIT

wheel:
	$(Q)tests/install-deps.sh build
	$(STEP) BUILD=release B=$(WHEEL)/release RPATH= LIBS='$(WHEEL_LIBS)' LDFLAGS=-s wheel-file
wheel-file: $(LIBBPS) $(DAEMONS) $(EXECUTORS) $(BPSCTL) $(TOOLBINS)
	$(call say,WHEEL,$(WHEEL))
	$(Q)rm -f $(WHEEL)/*.whl && python3 libbpsclient/python/wheel.py $(VERSION) $(WHEEL) \
		--expression '$(WHEEL_SPDX)' \
		--license bps=LICENSE \
		$(foreach l,$(WHEEL_LICENSES),--license $(l)=/usr/share/doc/$(l)/copyright) $^

wheel-test: wheel
	$(Q)tests/install-deps.sh wheel
	$(Q)$(PYTHON) -m pytest -q -p no:cacheprovider tests/frontends/wheel.py
# Install the wheel under each version of Python that METADATA.in names and that PATH has, with
# NumPy from the package index, and run a job of two workers. Fails if a job fails, or if PATH has
# no version at all.
wheel-pythons: wheel
	$(Q)tests/install-deps.sh wheel
	$(Q)python3 tests/frontends/pythons.py $(WHEEL)/*.whl
# Build the wheel again, in another folder and time zone and with another umask. The two wheels
# must have the same bytes.
wheel-again: wheel
	$(Q)again=$$(mktemp -d) && trap 'rm -rf "$$again"' EXIT && \
		git ls-files -z -co --exclude-standard | tar -c --null -T - | \
			tar -x -C $$again && \
		umask 027 && TZ=Asia/Tokyo $(MAKE) -s -C $$again COMMIT=$(COMMIT) CUDA=$(CUDA) \
			wheel >/dev/null && \
		cmp $(WHEEL)/*.whl $$again/$(WHEEL)/*.whl && \
		echo 'the wheels are the same'

.PHONY: wheel wheel-file wheel-test wheel-pythons wheel-again
