"""Checks that read the files of a model and load nothing."""
