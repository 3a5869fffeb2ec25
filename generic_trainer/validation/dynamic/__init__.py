"""Checks that load the model and call it."""
