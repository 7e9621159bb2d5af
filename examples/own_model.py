"""Your own model: a function that takes the dataset and returns a compiled keras.Model.

Run it with --model examples/own_model.py:build_model --set model_hyperparameters.units=32
"""

import keras


def build_model(dataset, units: int = 64, learning_rate: float = 1e-3) -> keras.Model:
    """Build a wide and deep network for a table, with columns of any kind.

    Args:
        dataset: Facts about the data: num_features, columns, mean, std, num_classes, task.
        units: Units of the deep part.
        learning_rate: The learning rate of Adam.

    Returns:
        A compiled model; its input is (batch, num_features), rows as the training reads them.
    """
    classes = dataset.num_classes
    inputs = keras.Input((dataset.num_features,))
    scaled = dataset.encode(inputs)  # normalized numbers, one-hot vectors, embeddings
    deep = keras.layers.Dense(units, activation="relu")(scaled)
    deep = keras.layers.Dropout(0.1)(deep)
    both = keras.layers.Concatenate()([scaled, deep])
    outputs = keras.layers.Dense(classes, activation="softmax")(both)
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model
