"""The steps of the pipeline, one folder each: its KFP interface, component.py, and its engine."""
