"""Runs COMMAND as one replica of a job: python3 -S supervisor.pyz -- COMMAND...

In a checkout: python -m kfp_tfjob.supervisor -- COMMAND...
"""

import signal

# The first process of a container receives only signals that it handles. Without these handlers, a
# signal that arrives while the other modules load would be lost, and Kubernetes would kill the pod
# after its grace period.
_EARLY = []
for _number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(_number, lambda number, _frame: _EARLY.append(number))

import os
import sys

from kfp_tfjob.supervisor import exit_codes
from kfp_tfjob.supervisor.supervise import Supervisor

if sys.argv[1:2] != ["--"] or not sys.argv[2:]:
    print(__doc__, file=sys.stderr, flush=True)
    sys.exit(exit_codes.CONFIGURATION)
# Not sys.exit, which waits for the threads that look for peers.
os._exit(Supervisor(sys.argv[2:], os.environ, _EARLY).run())
