"""What is wrong with a TFJob, found in its manifest alone: one rule for each trap.

Other kinds of jobs are not checked.

A rule is a function that yields where it does not hold, and stands in the module of its subject.
Without a cluster nothing is known of nodes, Secrets and quotas; that is the work of preflight.
"""
