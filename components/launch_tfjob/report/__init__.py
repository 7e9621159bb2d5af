"""The pages of a training, and the chief's progress reports that they show."""
