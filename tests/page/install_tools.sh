#!/bin/sh
# Installs what checks the JavaScript of the pages: TypeScript, ESLint and axe-core, into .venv/page-tools.
# This needs npm and Node 20 or newer. It never fails: without the tools, the checks that need them are skipped.

[ -z "$GATEHOUSE_PAGE_TOOLS" ] || exit 0 # They are installed elsewhere.
here=$(dirname "$0")/tools
target=$(dirname "$0")/../../.venv/page-tools
. "$(dirname "$0")/../npm.sh"

skip() {
    echo "The tools that check the pages could not be installed: $1. Those checks will be skipped."
    exit 0
}

! cmp -s "$here/package-lock.json" "$target/.installed" || exit 0
missing=$(missing_npm)
[ -z "$missing" ] || skip "$missing"
mkdir -p "$target" || skip "$target cannot be written"

echo "Installing the tools that check the pages (TypeScript, ESLint, axe-core)."
rm -f "$target/.installed"
cp "$here/package.json" "$here/package-lock.json" "$target/"
output=$(run_npm ci) || skip "$(last_error "$output")"
cp "$here/package-lock.json" "$target/.installed"
exit 0
