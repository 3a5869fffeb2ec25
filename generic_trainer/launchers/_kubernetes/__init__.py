"""Workers as the pods of a Kubeflow TFJob or TrainJob; see `_remote`.

1. Kubeflow's training operator 1.x runs TFJobs, and gives each pod its place by `TF_CONFIG`.
2. Kubeflow Trainer 2.x runs TrainJobs. It has no runtime for TensorFlow, so each TrainJob comes
   with a `TrainingRuntime`, which sets `TF_CONFIG` in the environment of the pods.
3. Tested with the real `kubernetes` client against a stand-in for the API server, which checks each
   manifest against the published types; not yet on a real cluster.
"""
