# `make run` and `make test` do all their own set-up; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Without bytecode, every process that a test starts would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test coverage screenshots crash cluster powerloss systemd container release installers deb-test clients agents lint bench site soak lock clean
.PHONY: fixture

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

run: $(VENV)/.run-ready  ## Start Gatehouse (with no config: web chat on 127.0.0.1:8420, no key needed).
	@$(BIN)/python -m compileall -q config gateway channels
	@exec $(BIN)/gatehouse run

test: $(VENV)/.dev-ready lint tools  ## Lint, type-check and run every test.
	$(BIN)/python -m pytest -n 3 --dist worksteal

coverage: $(VENV)/.dev-ready  ## Run every test and report the lines that no test runs (takes twice as long).
	$(BIN)/python -m pytest -n 3 --dist worksteal --cov --cov-report=term

screenshots: $(VENV)/.dev-ready  ## Make new reference images of the pages that look different now. Look at them before you commit.
	GATEHOUSE_UPDATE_SCREENSHOTS=1 $(BIN)/python -m pytest -q tests/page/test_screenshots.py
	@git status --short tests/page/screenshots

crash: $(VENV)/.dev-ready  ## Kill the daemon at every point of its work, thousands of times.
	GATEHOUSE_CRASH_SCALE=$${GATEHOUSE_CRASH_SCALE:-20} $(BIN)/python -m pytest -n 2 --dist worksteal tests/crash

cluster: $(VENV)/.dev-ready  ## Kill, pause and cut off the nodes of a cluster and its database, for half an hour.
	@sh tests/install_cluster_tools.sh
	@report=$$(mktemp); \
	GATEHOUSE_CLUSTER_SCALE=$${GATEHOUSE_CLUSTER_SCALE:-20} GATEHOUSE_CLUSTER_REPORT=$$report \
		$(BIN)/python -m pytest tests/cluster; \
	status=$$?; cat $$report; rm -f $$report; exit $$status

powerloss: $(VENV)/.dev-ready  ## Cut the power after every write of a conversation (needs strace).
	GATEHOUSE_POWERLOSS_CUTS=0 $(BIN)/python -m pytest tests/crash/test_powerloss.py

systemd: $(VENV)/.dev-ready  ## Test the service on a real systemd, booted in namespaces (as root).
	$(BIN)/python -m pytest tests/deploy/test_real_systemd.py

container: $(VENV)/.dev-ready  ## Build the image of the container and run it (as root on Debian).
	@sh tests/container/build_image.sh
	GATEHOUSE_CONTAINER=1 $(BIN)/python -m pytest tests/container

fixture: $(VENV)/.dev-ready  ## Make the data of this version, which every later one must understand (for each release).
	$(BIN)/python -m tests.versions.make $$($(BIN)/python -c 'import gateway; print(gateway.__version__)')

release: $(VENV)/.dev-ready  ## Build, commit and tag a release into dist/. (VERSION=1.2.3 for another version)
	@$(BIN)/python -m release $(if $(VERSION),--version $(VERSION))

installers: $(VENV)/.dev-ready  ## Install the wheel with uv, pipx and pip, each into an environment of its own.
	GATEHOUSE_ALL_INSTALLERS=1 $(BIN)/python -m pytest tests/release/test_installation.py

deb-test: $(VENV)/.dev-ready  ## Install, upgrade and remove the Debian package in a clean Debian (as root).
	@sh tests/release/make_root.sh $(CURDIR)/$(VENV)/debian $(BIN)/python
	GATEHOUSE_DEBIAN_ROOT=$(CURDIR)/$(VENV)/debian $(BIN)/python -m pytest tests/release/test_debian_machine.py

clients: $(VENV)/.dev-ready  ## Talk to Gatehouse with real OpenAI clients, each in an environment of its own.
	$(BIN)/python -m tests.clients

agents: $(VENV)/.dev-ready  ## Test all six known coding agents, with a fake model (installs 1.4 GB with npm).
	@sh tests/install_agents.sh all
	GATEHOUSE_ALL_AGENTS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/acp/test_real_agents.py

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	@sh tests/page/install_tools.sh
	@sh tests/page/lint.sh

.PHONY: tools
tools: $(VENV)/.dev-ready
	@sh tests/install_tools.sh
	@sh tests/install_agents.sh
	@sh tests/install_postgres18.sh

bench: $(VENV)/.dev-ready  ## Measure against the targets in docs/performance.md.
	@$(BIN)/python -m compileall -q config gateway channels
	$(BIN)/python -m bench

site: $(VENV)/.dev-ready  ## Build the documentation as a website, into site/.
	$(BIN)/python -m website

soak: $(VENV)/.dev-ready  ## Play a busy day in a few minutes and check that nothing grows. (SOAK="MESSAGES CHATS" for another size)
	$(BIN)/python -m bench.soak $(SOAK)

lock: $(VENV)/.dev-ready  ## Pin the newest versions that fit together.
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --no-header --no-annotate pyproject.toml requirements/run.in -o requirements/run.txt
	$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --no-header --no-annotate requirements/dev.in -o requirements/dev.txt
	for each in requirements/clients/*.in; do \
		$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --no-header --no-annotate $$each -o $${each%.in}.txt || exit; \
	done

clean:  ## Remove everything that the other targets made.
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

# `$(call install,ARGUMENTS)` prints a line for each package: pip is either silent or very long. Its errors are shown.
install = { $(BIN)/python -m pip install $(1) && echo all-installed; } | { \
	status=1; \
	while read -r verb package _; do \
		case "$$verb $$package" in \
			Collecting*|Processing*) echo "  $${package\#\#*/}" ;; \
			"Installing collected") echo "Unpacking them. This takes about half a minute." ;; \
			all-installed*) status=0 ;; \
		esac; \
	done; \
	exit $$status; }

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Gatehouse needs Python 3.11 or newer; set PYTHON=/path/to/it.")'
	@echo "Setting up Gatehouse in $(VENV). This takes a minute or two, once."
	@echo "Creating a virtual environment."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run-ready: $(VENV)/bin/python requirements/run.txt pyproject.toml
	@echo "Installing the packages that Gatehouse needs:"
	@$(call install,-r requirements/run.txt)
	@echo "Installing Gatehouse."
	@$(BIN)/python -m pip uninstall -q -y gatehouse 2>/dev/null  # Its former name. Both would provide the same command.
	@$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.dev-ready: $(VENV)/.run-ready requirements/dev.txt
	@echo "Installing the packages that the tests and linters need:"
	@$(call install,-r requirements/dev.txt)
	@touch $@
