"""
A script that trains a classifier by the native API.
"""

import argparse

import tensorflow as tf
from determined import estimator


def build(context, hidden):
    optimizer = tf.compat.v1.train.ProximalAdagradOptimizer(
        learning_rate=context.get_hparam("learning_rate")
    )
    optimizer = context.wrap_optimizer(optimizer)
    return tf.compat.v1.estimator.DNNClassifier(
        feature_columns=[tf.feature_column.numeric_column("x", shape=(4,))],
        n_classes=3,
        hidden_units=[hidden],
        optimizer=optimizer,
    )


def input_fn(context, training):
    def _input_fn():
        from sklearn.datasets import load_iris

        x, y = load_iris(return_X_y=True)
        dataset = tf.data.Dataset.from_tensor_slices(({"x": x.astype("float32")}, y))
        dataset = context.wrap_dataset(dataset)
        if training:
            dataset = dataset.shuffle(150, seed=context.get_trial_seed())
        return dataset.batch(context.get_per_slot_batch_size())

    return _input_fn


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=10)
    args = parser.parse_args()

    context = estimator.init(
        config={
            "hyperparameters": {"global_batch_size": 30, "learning_rate": 1e-2},
            "searcher": {
                "name": "single",
                "metric": "accuracy",
                "smaller_is_better": False,
                "max_length": {"batches": 50},
            },
        },
        local=True,
        test=True,
        context_dir=".",
    )
    context.train_and_evaluate(
        build(context, args.hidden),
        tf.estimator.TrainSpec(input_fn(context, True)),
        tf.estimator.EvalSpec(input_fn(context, False), steps=None),
    )
    print("trained", args.hidden)
