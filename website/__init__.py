"""Builds the documentation as a website: `python -m website`. The reference pages are made from the code."""
