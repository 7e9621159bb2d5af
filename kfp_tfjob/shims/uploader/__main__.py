"""`python -m uploader`, the old name of `python -m kfp_tfjob.uploader`.

The folder `shims` belongs on PYTHONPATH. This one has no `__init__.py`, so any regular package
`uploader` on the path wins.
"""

from kfp_tfjob.old_names import restart

restart("uploader")
