"""The client of a Kubeflow Pipelines back end: submit runs, follow them, end them, explain them."""
