"""For tools that still call setup.py: the distribution is described in pyproject.toml."""

from setuptools import setup

setup()
