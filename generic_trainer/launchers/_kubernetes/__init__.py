"""Workers as the pods of a Kubeflow TFJob or TrainJob; see `_remote`.

1. A TFJob is of Kubeflow's training operator 1.x, which tells each pod its place by `TF_CONFIG`.
2. A TrainJob is of Kubeflow Trainer 2.x, which has no runtime for TensorFlow: each comes with a
   `TrainingRuntime` of its own, whose pods find `TF_CONFIG` in their environment.
3. Tested with the real `kubernetes` client against a stand-in for the API server, which checks each
   manifest against the published types, not yet on a real cluster.
"""
