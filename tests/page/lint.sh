#!/bin/sh
# Checks the JavaScript of the pages: its types with TypeScript, from JSDoc, and its style with ESLint.

root=$(cd "$(dirname "$0")/../.." && pwd)
tools=${GATEHOUSE_PAGE_TOOLS:-$root/.venv/page-tools}/node_modules/.bin
if [ ! -x "$tools/tsc" ] || [ ! -x "$tools/eslint" ]; then
    echo "The JavaScript of the pages was not checked: TypeScript and ESLint are not installed."
    exit 0
fi
cd "$root" || exit 1
for config in tsconfig.json tsconfig.worker.json; do
    "$tools/tsc" -p "tests/page/tools/$config" || exit 1
done
exec "$tools/eslint" --config tests/page/tools/eslint.config.mjs --max-warnings 0 channels/web/page
