#!/bin/sh
# Installs Patroni and etcd, if they are missing, for the long form of the cluster's tests. `make cluster` runs it.
# This needs root and apt-get. It never fails: without them the tests that need them are skipped.

root=$GATEHOUSE_TOOLS_ROOT # For the test of this script, which must not change the system.

missing=""
command -v patroni >/dev/null 2>&1 || missing="$missing patroni"
command -v etcd >/dev/null 2>&1 || missing="$missing etcd-server"
[ -n "$missing" ] || exit 0

skip() {
    echo "Not installed:$missing ($1). The tests that need them will be skipped."
    echo "To run them, install these packages. On Debian and Ubuntu: sudo apt-get install$missing"
    exit 0
}

[ "$(id -u)" = 0 ] || skip "this needs root"
command -v apt-get >/dev/null 2>&1 || skip "this needs apt-get"
export DEBIAN_FRONTEND=noninteractive

# The tests start servers of their own. Debian's packages would start theirs, now and at every boot.
mkdir -p "$root/etc/systemd/system"
for service in patroni etcd; do
    [ -e "$root/etc/systemd/system/$service.service" ] || ln -s /dev/null "$root/etc/systemd/system/$service.service"
done
echo "Installing programs for the tests of a cluster:$missing. This takes a minute."
apt() {
    apt-get -qq -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120 "$@" </dev/null 2>&1
}
output=$(apt update) || echo "apt-get update failed: $(echo "$output" | tail -n 1)"
# shellcheck disable=SC2086 # Each word is a package. Patroni's bindings are packages of their own.
output=$(apt install -y --no-install-recommends python3-etcd python3-psycopg2 $missing) ||
    skip "$(echo "$output" | tail -n 1)"
exit 0
