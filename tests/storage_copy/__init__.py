"""Tests of copies between storage engines."""
