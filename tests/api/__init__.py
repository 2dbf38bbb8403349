"""Tests of the HTTP API, through a real daemon and real HTTP."""
