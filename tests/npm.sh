# Functions for scripts that install packages with npm into a folder of their own. They expect $target.

# Prints what is missing, if anything is.
missing_npm() {
    command -v npm >/dev/null 2>&1 || { echo "npm is missing"; return; }
    node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null || echo "Node 20 or newer is missing"
}

run_npm() {
    npm "$@" --prefix "$target" --ignore-scripts --prefer-offline --no-audit --no-fund --no-update-notifier \
        --fetch-retries=1 --fetch-timeout=60000 </dev/null 2>&1
}

last_error() {
    echo "$1" | grep '^npm err' | head -n 1
}
