"""A premade classifier over numbers and words, with feature columns of many kinds."""

import numpy as np
import tensorflow as tf
from determined.estimator import EstimatorTrial, EstimatorTrialContext
from sklearn.datasets import load_wine

NUMBERS = ("alcohol", "malic_acid", "ash", "color_intensity")
KINDS = 3


def tables():
    """Returns (features, kinds) to train on and to validate on; hue and proline become words."""
    wine = load_wine()
    features = {name: wine.data[:, wine.feature_names.index(name)] for name in NUMBERS}
    for name, words in (("hue", ["dark", "light"]), ("proline", ["poor", "fair", "rich"])):
        values = wine.data[:, wine.feature_names.index(name)]
        bounds = np.quantile(values, np.arange(1, len(words)) / len(words))
        features[name] = np.array(words)[np.digitize(values, bounds)]
    order = np.random.RandomState(7).permutation(len(wine.target))
    split = len(order) * 3 // 4
    return [
        ({name: column[rows] for name, column in features.items()}, wine.target[rows])
        for rows in (order[:split], order[split:])
    ]


def feature_columns():
    columns = tf.feature_column
    alcohol = columns.numeric_column("alcohol")
    hue = columns.categorical_column_with_vocabulary_list("hue", ["dark", "light"])
    proline = columns.categorical_column_with_hash_bucket("proline", 20)
    both = columns.crossed_column(["hue", "proline"], hash_bucket_size=50)
    scaled = (columns.numeric_column(name, normalizer_fn=lambda x: x / 5) for name in NUMBERS)
    return [
        *scaled,
        columns.bucketized_column(alcohol, [12.0, 12.5, 13.0, 13.5]),
        columns.indicator_column(hue),
        columns.embedding_column(proline, dimension=3),
        columns.embedding_column(both, dimension=4),
    ]


class WinesTrial(EstimatorTrial):
    def __init__(self, context: EstimatorTrialContext):
        self.context = context
        self.training, self.validation = tables()

    def input_fn(self, table, mixed):
        def read():
            data = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(table))
            data = data.shuffle(len(table[1])) if mixed else data
            return data.batch(self.context.get_per_slot_batch_size())

        return read

    def build_estimator(self):
        optimizer = tf.keras.optimizers.Adagrad(self.context.get_hparam("learning_rate"))
        return tf.estimator.DNNClassifier(
            self.context.get_hparam("hidden_units"),
            feature_columns(),
            n_classes=KINDS,
            optimizer=self.context.wrap_optimizer(optimizer),
            dropout=self.context.get_hparam("dropout"),
        )

    def build_train_spec(self):
        return tf.estimator.TrainSpec(self.input_fn(self.training, mixed=True), max_steps=1000)

    def build_validation_spec(self):
        return tf.estimator.EvalSpec(self.input_fn(self.validation, mixed=False), steps=None)

    def build_serving_input_receiver_fns(self):
        spec = tf.feature_column.make_parse_example_spec(feature_columns())
        return {"wines": tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)}
