# Pages that are made from sources, in build/docs. Included by the Makefile.
docs:
	$(Q)tests/install-deps.sh build frontends
	$(STEP) docs-run
# The packages of docs.txt are in a Python environment below build/docs-env, which is made once.
docs-run: $(BPSCTL)
	$(Q)rm -rf build/docs
	$(Q)python=$$(python3 tests/frontends/environment.py docs/docs.txt \
		$(CURDIR)/build/docs-env) && $$python docs/pages.py $(BPSCTL) build/docs

.PHONY: docs docs-run
