#!/bin/sh
# Gets Chromium for the page tests, where that is possible. Never fails: without it those tests are skipped.

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done

skipped() {
    echo "The page tests will be skipped: $1." >&2
    echo "Install Chromium yourself to have them run." >&2
    exit 0
}

[ "$(id -u)" = 0 ] || skipped "there is no Chromium, and installing it needs root"
command -v apt-get >/dev/null 2>&1 || skipped "there is no Chromium, and no apt-get to install it with"

echo "Installing Chromium for the page tests." >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null 2>&1 || skipped "the package lists could not be fetched"
apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 || skipped "Chromium could not be installed"
exit 0
