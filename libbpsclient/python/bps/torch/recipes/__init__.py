"""Recipes for training whose workers exchange less often than in each step, or later than in it.

:mod:`bps.torch` exports the classes.
"""
