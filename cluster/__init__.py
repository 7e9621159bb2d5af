"""Where jobs run: a Kubernetes cluster, or processes of this machine. It knows no step."""
