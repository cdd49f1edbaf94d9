# Debian packages. Included by the Makefile.
#
# The packaging files are in systemd/debian/. For dpkg they are copied to debian/ in a copy of this
# tree. With DEB_BUILD_OPTIONS=nocheck in the environment the tests are left out.
DEB	:= build/deb
DEB_SRC	:= $(DEB)/bps-$(VERSION)
DEB_TAR	:= $(DEB)/bps_$(VERSION).orig.tar.xz
# Suppress two findings of lintian. These packages close no bug of Debian, because they are not
# uploaded to Debian. The project has no home page yet.
DEB_UNTAGGED := --suppress-tags initial-upload-closes-no-bugs,no-homepage-field
# Build the package bps-agent-cuda only if the CUDA toolkit is installed.
DEB_CUDA := $(if $(filter yes,$(CUDA)),-Ppkg.bps.cuda)
DEB_TIME = $$(dpkg-parsechangelog -l systemd/debian/changelog -S Timestamp)

deb:
	$(Q)tests/install-deps.sh deb
	$(Q)rm -rf $(DEB) && mkdir -p $(DEB_SRC)
	$(Q)git ls-files -z -co --exclude-standard | grep -zv '^systemd/debian/' | \
		tar -c --null -T - | tar -x -C $(DEB_SRC)
	$(Q)echo $(COMMIT) >$(DEB_SRC)/.commit # the package's source is no git repository
	$(Q)tar -C $(DEB) --sort=name --mtime=@$(DEB_TIME) --owner=0 --group=0 --numeric-owner \
		--mode=u+rw,go=rX -cJf $(DEB_TAR) bps-$(VERSION)
	$(Q)cp -a systemd/debian $(DEB_SRC)/debian
	$(call say,DEB,$(DEB))
	$(Q)cd $(DEB_SRC) && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL \
		dpkg-buildpackage -us -uc -jauto $(DEB_CUDA) >../build.log 2>&1 || \
		{ grep -nE -m5 'error:|undefined reference|FAIL' ../build.log; \
		tail -20 ../build.log; \
		echo 'make deb: failed; $(DEB)/build.log has the whole log'; exit 1; } >&2
	$(Q)lintian --allow-root --fail-on error,warning --pedantic --info $(DEB_UNTAGGED) \
		$(DEB)/*.changes
	@ls $(DEB)/*.deb

# Build the packages a second time, in another folder and time zone and with another umask. Both
# builds must produce packages with the same bytes.
deb-again: deb
	$(Q)again=$$(mktemp -d) && trap 'rm -rf "$$again"' EXIT && \
		dpkg-source --require-strong-checksums -x $(DEB)/*.dsc $$again/bps >/dev/null && \
		cd $$again/bps && umask 027 && \
		TZ=Asia/Tokyo DEB_BUILD_OPTIONS="nocheck parallel=1" env -u MAKEFLAGS -u MFLAGS \
			-u MAKELEVEL dpkg-buildpackage -us -uc -b $(DEB_CUDA) \
			>../build.log 2>&1 && \
		cd .. && sha256sum *.deb >sums && cd $(CURDIR)/$(DEB) && \
		sha256sum --quiet -c $$again/sums && echo 'the packages are the same'

# Test the packages in five containers of systemd-nspawn, each with its own systemd. Needs root.
nspawn:
	$(Q)tests/install-deps.sh nspawn
	$(Q)DEB_BUILD_OPTIONS=nocheck $(MAKE) --no-print-directory deb
	$(Q)tests/nspawn/run.sh $(DEB) build/nspawn

.PHONY: deb deb-again nspawn
