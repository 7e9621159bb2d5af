"""`python -m trainer`, the old name of `python -m kfp_tfjob.trainer`.

The folder `shims` belongs on PYTHONPATH. This one has no `__init__.py`, so any regular package
`trainer` on the path wins.
"""

from kfp_tfjob.old_names import restart

restart("trainer")
