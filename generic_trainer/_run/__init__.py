"""Middle floor: one whole run, from its key to the published model.

`run.train_and_publish` is what the executor and the command line call.
"""
