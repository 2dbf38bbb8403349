"""Runs commands that can reach only their workspace: in a local sandbox, or through the sandbox service.

This package imports nothing heavy, so that the process of the service stays small.
"""
