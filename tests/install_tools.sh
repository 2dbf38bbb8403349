#!/bin/sh
# Installs the programs that some tests need, if they are missing: Chromium, bubblewrap and strace.
# This needs root and apt-get. It never fails: without a program the tests that need it are skipped.

missing=""
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 ||
    command -v google-chrome >/dev/null 2>&1 || missing="$missing chromium"
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v strace >/dev/null 2>&1 || missing="$missing strace"
[ -n "$missing" ] || exit 0

export DEBIAN_FRONTEND=noninteractive
apt() {
    apt-get -qq -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120 "$@" </dev/null 2>&1
}

failed=""
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing programs for the tests:$missing. This takes a minute or two."
    output=$(apt update) || echo "apt-get update failed: $(echo "$output" | tail -n 1)"
    for package in $missing; do # One by one: a package that this system does not have must not hold up the others.
        if ! output=$(apt install -y --no-install-recommends "$package"); then
            echo "$package could not be installed: $(echo "$output" | tail -n 1)"
            failed="$failed $package"
        fi
    done
else
    failed="$missing"
fi

if [ -n "$failed" ]; then
    echo "Not installed:$failed. The tests that need these programs will be skipped."
    echo "To run them, install these packages. On Debian and Ubuntu: sudo apt-get install$failed"
fi
exit 0
