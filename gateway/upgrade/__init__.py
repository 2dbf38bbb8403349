"""Upgrades: a rehearsal of this version on a copy of the data, for `gatehouse upgrade --check`."""
