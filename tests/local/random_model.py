"""Model code with all that draws random numbers; one layer draws in evaluations too."""

RANDOM_MODEL = """
import keras

class Noise(keras.layers.Layer):
    def call(self, x):
        return x + 0.1 * keras.random.normal(keras.ops.shape(x))

class OwnNoise(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x, training=False):
        noise = keras.random.uniform(keras.ops.shape(x), 0.9, 1.1, seed=self.seed_generator)
        return x * noise if training else x

def build_model(dataset):
    kinds = keras.layers
    model = keras.Sequential([
        keras.Input((dataset.num_features,)),
        kinds.Normalization(mean=dataset.mean, variance=dataset.std**2),
        Noise(),
        OwnNoise(),
        kinds.Dense(48, activation="relu"),
        kinds.Dropout(0.1),
        kinds.GaussianNoise(0.1),
        kinds.GaussianDropout(0.1),
        kinds.AlphaDropout(0.1),
        kinds.Reshape((4, 4, 3)),
        kinds.RandomFlip(),
        kinds.RandomRotation(0.1),
        kinds.Reshape((16, 3)),
        kinds.SpatialDropout1D(0.1),
        kinds.Flatten(),
        kinds.Lambda(lambda x: x * keras.random.uniform((48,), 0.9, 1.1)),
        kinds.Dense(dataset.num_classes, activation="softmax"),
    ])
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model
"""
