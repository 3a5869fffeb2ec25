"""A script without a trial class: it trains a premade classifier by the native API."""

import sys

import tensorflow as tf
from determined.estimator import init
from sklearn.datasets import load_iris

CONFIG = {
    "hyperparameters": {"global_batch_size": 30, "learning_rate": 1e-2},
    "searcher": {
        "name": "single",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_length": {"batches": 50},
    },
}


def main(hidden):
    context = init(config=CONFIG, local=True, test=True, context_dir=".")
    optimizer = tf.compat.v1.train.ProximalAdagradOptimizer(context.get_hparam("learning_rate"))
    classifier = tf.compat.v1.estimator.DNNClassifier(
        [hidden],
        [tf.feature_column.numeric_column("measured", shape=[4])],
        n_classes=3,
        optimizer=context.wrap_optimizer(optimizer),
    )

    def flowers():
        measured, species = load_iris(return_X_y=True)
        flowers = tf.data.Dataset.from_tensor_slices(({"measured": measured}, species))
        return context.wrap_dataset(flowers)

    def train_input():
        mixed = flowers().shuffle(150, seed=context.get_trial_seed())
        return mixed.batch(context.get_per_slot_batch_size())

    def test_input():
        return flowers().batch(context.get_per_slot_batch_size())

    context.train_and_evaluate(
        classifier,
        tf.estimator.TrainSpec(train_input),
        tf.estimator.EvalSpec(test_input, steps=None),
    )
    print("trained", hidden)


if __name__ == "__main__":
    main(int(sys.argv[1]))
