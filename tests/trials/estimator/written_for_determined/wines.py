"""
A premade classifier with feature columns over a table of passengers, in the way of the tutorials.
"""

import numpy as np
import pandas as pd
import tensorflow as tf
from determined.estimator import EstimatorTrial, EstimatorTrialContext

CATEGORICAL_COLUMNS = [
    "sex",
    "n_siblings_spouses",
    "parch",
    "class",
    "deck",
    "embark_town",
    "alone",
]
NUMERIC_COLUMNS = ["age", "fare"]


def load_data():
    rng = np.random.RandomState(1)
    n = 800
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["male", "female"], n, p=[0.65, 0.35]),
            "age": rng.normal(30, 12, n).clip(1, 80).round(1),
            "n_siblings_spouses": rng.choice([0, 1, 2, 3], n, p=[0.7, 0.2, 0.07, 0.03]),
            "parch": rng.choice([0, 1, 2], n, p=[0.76, 0.14, 0.1]),
            "fare": rng.exponential(30, n).round(2),
            "class": rng.choice(["First", "Second", "Third"], n, p=[0.25, 0.2, 0.55]),
            "deck": rng.choice(["unknown", "A", "B", "C", "D"], n, p=[0.8, 0.05, 0.05, 0.05, 0.05]),
            "embark_town": rng.choice(["Southampton", "Cherbourg", "Queenstown"], n),
            "alone": rng.choice(["n", "y"], n),
        }
    )
    score = 2.0 * (frame["sex"] == "female") + 1.0 * (frame["class"] == "First") - 1.2
    survived = (score + rng.normal(0, 0.5, n) > 0).astype(int)
    return frame[:600], survived[:600], frame[600:], survived[600:]


def make_feature_columns(frame):
    columns = []
    for name in CATEGORICAL_COLUMNS:
        vocabulary = frame[name].unique()
        columns.append(
            tf.feature_column.indicator_column(
                tf.feature_column.categorical_column_with_vocabulary_list(name, vocabulary)
            )
        )
    columns += [
        tf.feature_column.numeric_column(
            name, dtype=tf.float32, normalizer_fn=lambda x: (x - 30.0) / 20.0
        )
        for name in NUMERIC_COLUMNS
    ]
    columns.append(
        tf.feature_column.bucketized_column(
            tf.feature_column.numeric_column("age"), boundaries=[18, 30, 45, 60]
        )
    )
    age_x_gender = tf.feature_column.crossed_column(["class", "sex"], hash_bucket_size=100)
    columns.append(tf.feature_column.embedding_column(age_x_gender, dimension=4))
    return columns


class TitanicTrial(EstimatorTrial):
    def __init__(self, context: EstimatorTrialContext):
        self.context = context
        self.data = load_data()

    def make_input_fn(self, data_df, label_df, shuffle=True):
        def input_function():
            ds = tf.data.Dataset.from_tensor_slices((dict(data_df), label_df))
            ds = self.context.wrap_dataset(ds)
            if shuffle:
                ds = ds.shuffle(1000)
            return ds.batch(self.context.get_per_slot_batch_size())

        return input_function

    def build_estimator(self):
        self.columns = make_feature_columns(self.data[0])
        optimizer = tf.keras.optimizers.Adagrad(
            learning_rate=self.context.get_hparam("learning_rate")
        )
        optimizer = self.context.wrap_optimizer(optimizer)
        return tf.estimator.DNNClassifier(
            hidden_units=self.context.get_hparam("hidden_units"),
            feature_columns=self.columns,
            optimizer=optimizer,
            batch_norm=False,
            dropout=self.context.get_hparam("dropout"),
        )

    def build_train_spec(self):
        return tf.estimator.TrainSpec(
            self.make_input_fn(self.data[0], self.data[1]), max_steps=1000
        )

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(
            self.make_input_fn(self.data[2], self.data[3], shuffle=False), steps=None
        )

    def build_serving_input_receiver_fns(self):
        spec = tf.feature_column.make_parse_example_spec(self.columns)
        return {"titanic": tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)}
