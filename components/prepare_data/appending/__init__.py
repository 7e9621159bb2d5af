"""data_options.append: added files change only a part of a dataset."""
