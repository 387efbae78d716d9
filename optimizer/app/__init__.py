"""Composition root: one use case per command, built from configuration."""
