"""Checks of an installation for `gatehouse doctor`. Each check returns findings with a suggested fix."""
