"""data_options.append: a dataset of which added files change only a part."""
