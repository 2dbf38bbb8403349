"""Moves conversations, memory and settings of other gateways to this one.

One module knows the files of each gateway (`miniclaw`, `nanobot`, `hermes`, `openclaw`, `picoclaw`) and turns them
into the values of `values.py`. `gateways.py` finds the data, `plan.py` decides what goes where, and `writer.py` writes
what is planned.
"""
