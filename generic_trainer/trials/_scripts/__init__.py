"""Experiments that a script starts, here or as a Ray job: what all trial APIs have in common.

`keras.init`, `estimator.init` and `create` are made of `start`; `loading` ends a script where its
trial is known, `job` sends its folder to a cluster and runs there.
"""
