# The Python wheel. Included by the Makefile.
#
# The programs of the wheel contain their libraries, except those of glibc: a machine needs nothing
# but Python, and no library of the machine can come between. Copies of the shared libraries need
# patched search paths instead, and lie in a folder that a moved environment can lose.
WHEEL	:= build/wheel
WHEEL_LIBS := -Wl,-Bstatic -luv_a -levent_openssl -levent -ljansson -linih -lnuma -lssl -lcrypto \
	-Wl,-Bdynamic -ldl -lm -lpthread
# Debian packages of these libraries, whose licences the wheel has.
WHEEL_LICENSES := libuv1-dev libevent-dev libjansson-dev libinih-dev libnuma-dev libssl-dev

wheel:
	$(Q)tests/install-deps.sh build
	$(STEP) BUILD=release B=$(WHEEL)/release RPATH= LIBS='$(WHEEL_LIBS)' LDFLAGS=-s wheel-file
wheel-file: $(LIBBPS) $(DAEMONS) $(EXECUTORS) $(BPSCTL) $(TOOLBINS)
	$(call say,WHEEL,$(WHEEL))
	$(Q)rm -f $(WHEEL)/*.whl && python3 libbpsclient/python/wheel.py $(VERSION) $(WHEEL) \
		--license bps=LICENSE \
		$(foreach l,$(WHEEL_LICENSES),--license $(l)=/usr/share/doc/$(l)/copyright) $^

wheel-test: wheel
	$(Q)tests/install-deps.sh wheel
	$(Q)$(PYTHON) -m pytest -q -p no:cacheprovider tests/frontends/wheel.py
# Build the wheel again, in another folder, time zone and with another umask: it must be the same.
wheel-again: wheel
	$(Q)again=$$(mktemp -d) && trap 'rm -rf "$$again"' EXIT && \
		git ls-files -z -co --exclude-standard | tar -c --null -T - | \
			tar -x -C $$again && \
		umask 027 && TZ=Asia/Tokyo $(MAKE) -s -C $$again COMMIT=$(COMMIT) CUDA=$(CUDA) \
			wheel >/dev/null && \
		cmp $(WHEEL)/*.whl $$again/$(WHEEL)/*.whl && \
		echo 'the wheels are the same'

.PHONY: wheel wheel-file wheel-test wheel-again
