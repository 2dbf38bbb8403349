#!/bin/sh
# Installs coding agents for tests/acp/test_real_agents.py into .venv/agents: the two smallest, or all with `all`.
# This needs npm and Node 20 or newer. It never fails: tests of agents that are not installed are skipped.

[ -z "$GATEHOUSE_AGENTS" ] || exit 0 # They are installed elsewhere.
here=$(dirname "$0")/acp/agents
target=$(dirname "$0")/../.venv/agents
others="@agentclientprotocol/codex-acp@2.6.0 @github/copilot@1.0.102 @qwen-code/qwen-code@0.15.10 opencode-ai@1.18.33"
. "$(dirname "$0")/npm.sh"

skip() {
    echo "The coding agents for the tests could not be installed: $1. The tests with real agents will be skipped."
    exit 0
}

is_done() {
    cmp -s "$here/package-lock.json" "$target/.default" || return 1
    [ "$1" != all ] || [ "$others" = "$(cat "$target/.others" 2>/dev/null)" ]
}

! is_done "$1" || exit 0
missing=$(missing_npm)
[ -z "$missing" ] || skip "$missing"
mkdir -p "$target" || skip "$target cannot be written"

if ! is_done; then
    echo "Installing two coding agents for the tests (Claude Code, Gemini CLI). This takes about a minute."
    rm -f "$target/.default" "$target/.others"
    cp "$here/package.json" "$here/package-lock.json" "$target/"
    output=$(run_npm ci) || skip "$(last_error "$output")"
    cp "$here/package-lock.json" "$target/.default"
fi
if [ "$1" = all ]; then
    echo "Installing four more (Codex, GitHub Copilot, OpenCode, Qwen Code). They take 1 GB."
    # shellcheck disable=SC2086 # They are words.
    output=$(run_npm install --no-save --no-package-lock $others) || skip "$(last_error "$output")"
    # OpenCode puts the program for this machine in place with its own script.
    output=$(node "$target/node_modules/opencode-ai/postinstall.mjs" 2>&1) || skip "$output"
    echo "$others" >"$target/.others"
fi
exit 0
