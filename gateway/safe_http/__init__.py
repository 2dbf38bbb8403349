"""Fetches web pages that a model asks for, without reaching private addresses."""
