"""Checks the manifest of a TFJob, with one rule for each known fault.

Other kinds of jobs are not checked. `kubectl apply --dry-run=server` finds unknown fields and wrong
types. A rule is a function in the module of its subject. It yields each place that breaks the rule.
Nodes, Secrets and quotas are unknown without a cluster; preflight checks them.
"""
