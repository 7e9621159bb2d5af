"""The pipeline steps, one folder each with the KFP interface (component.py) and the engine."""
