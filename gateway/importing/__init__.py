"""Imports conversations of other gateways: parses their files, finds the scope, and converts them to transcripts."""
