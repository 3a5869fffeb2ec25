"""Faults of models beyond those of the default tests, each with where the idea comes from."""
