# Images for containers, without a registry of images. Included by the Makefile.
#
# `make image` installs our packages into a minimal Debian, and writes the image `bps`. If the CUDA
# toolkit is installed, it also writes the image `bps-cuda`. Needs root. The same commit and the
# same packages of Debian give the same bytes: all times are the commit's.
IMAGE	:= build/image
IMAGE_TIME = $$(git log -1 --format=%ct)
IMAGE_PACKAGES := bps-scheduler bps-server bps-agent bpsctl bps-tools libbpsclient0
IMAGE_SH = SOURCE_DATE_EPOCH=$(IMAGE_TIME) systemd/image.sh $(DEB) $(IMAGE) $(1) $(VERSION) \
	$(COMMIT) $(IMAGE_PACKAGES)

image:
	$(Q)tests/install-deps.sh image
	$(Q)DEB_BUILD_OPTIONS=nocheck $(MAKE) --no-print-directory deb
	$(Q)$(MAKE) --no-print-directory image-files
# Make the images from the packages in build/deb. The file DIGESTS has the names and digests.
image-files:
	$(call say,IMAGE,$(IMAGE))
	$(Q)rm -rf $(IMAGE) && mkdir -p $(IMAGE)
	$(Q)$(call IMAGE_SH,bps) >$(IMAGE)/DIGESTS
ifeq ($(CUDA),yes)
	$(Q)$(call IMAGE_SH,bps-cuda) bps-agent-cuda >>$(IMAGE)/DIGESTS
else
	@echo 'the image bps-cuda is not made: $(NO_CUDA)'
endif
	@cat $(IMAGE)/DIGESTS

# Make the images a second time, with another time zone and umask. Then run the pods of the example
# job in a chroot of the image.
image-test: image
	$(Q)tests/install-deps.sh image-test
	$(Q)umask 077 && TZ=Asia/Tokyo $(MAKE) -s IMAGE=$(IMAGE)-again image-files >/dev/null
	$(Q)tests/image/run.sh $(IMAGE) $(IMAGE)-again

.PHONY: image image-files image-test
