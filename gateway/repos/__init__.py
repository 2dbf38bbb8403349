"""Repositories that sessions are bound to: who may use which, git in a sandbox, and a worktree for each session."""
