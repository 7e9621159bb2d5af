"""The layers in front of a network: what a model of tables can learn through them."""

import numpy as np
import pytest

from kfp_tfjob.features.coding import Column
from kfp_tfjob.features.input_layers import MOST_ONE_HOT, encode


@pytest.mark.parametrize("size", [MOST_ONE_HOT, MOST_ONE_HOT + 1])
def test_a_table_of_categories_alone_can_be_learned(size: int) -> None:
    import keras

    keras.utils.set_random_seed(1)
    columns = [Column("shop", "category", 0, 1, size), Column("article", "category", 1, 1, size)]
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(16, activation="relu")(
        encode(inputs, columns, np.zeros(2), np.ones(2))
    )
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    codes = np.random.default_rng(1).integers(1, size, (2000, 2))
    labels = codes[:, 0] % 2
    model.fit(codes.astype(np.float32), labels, batch_size=50, epochs=8, verbose=0)
    _, accuracy = model.evaluate(codes.astype(np.float32), labels, verbose=0)
    assert accuracy > 0.95
