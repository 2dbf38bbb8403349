#!/bin/sh
# Installs the programs that some tests need, if they are missing: Chromium, Firefox, bubblewrap, strace, PostgreSQL,
# PgBouncer, HAProxy, Prometheus (for promtool).
# This needs root and apt-get. It never fails: without a program the tests that need it are skipped.

root=$GATEHOUSE_TOOLS_ROOT # For the test of this script, which must not change the system.

has() {
    for program in "$@"; do
        ! command -v "$program" >/dev/null 2>&1 || return 0
    done
    return 1
}

missing=""
has chromium chromium-browser google-chrome || missing="$missing chromium"
has firefox-esr firefox || missing="$missing firefox-esr"
has bwrap || missing="$missing bubblewrap"
has strace || missing="$missing strace"
has postgres "$root"/usr/lib/postgresql/*/bin/postgres || missing="$missing postgresql"
has pgbouncer "$root/usr/sbin/pgbouncer" || missing="$missing pgbouncer"
has haproxy "$root/usr/sbin/haproxy" || missing="$missing haproxy"
has promtool || missing="$missing prometheus"
[ -n "$missing" ] || exit 0

export DEBIAN_FRONTEND=noninteractive
apt() {
    apt-get -qq -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120 "$@" </dev/null 2>&1
}

# The tests start servers of their own. Debian's packages would start theirs, now and at every boot.
start_no_services() {
    umask 022
    cluster="$root/etc/postgresql-common/createcluster.d/gatehouse-tests.conf"
    mkdir -p "${cluster%/*}" "$root/etc/systemd/system"
    echo "create_main_cluster = false" >"$cluster"
    trap 'rm -f "$cluster"' EXIT
    for server in pgbouncer haproxy prometheus; do
        case "$missing" in *$server*) ln -s /dev/null "$root/etc/systemd/system/$server.service" ;; esac
    done
}

failed=""
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing programs for the tests:$missing. This takes a minute or two."
    start_no_services 2>/dev/null
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
