"""Of what kfp.local prints, a person sees the steps' own lines, after the name of the step."""

from kfp_tfjob.pipelines.local.output import readable

PRINTED = """\
12:00:00.000 - INFO - Executing task \x1b[96m'prepare-data'\x1b[0m
12:00:00.000 - INFO - Streamed logs:

    [KFP Executor 2026-01-01 12:00:00,000 INFO]: Looking for component `prepare_data`
    [KFP Executor 2026-01-01 12:00:00,000 INFO]: Got executor_input:
    {
        "inputs": {
            "parameterValues": {}
        }
    }
    12:00:01 1797 rows
      indented
    [KFP Executor 2026-01-01 12:00:02,000 INFO]: Wrote executor output file to /x.

12:00:02.000 - INFO - Task 'prepare-data' outputs:
    secret: 'not the step talking'
12:00:02.000 - INFO - Executing task \x1b[96m'evaluate'\x1b[0m
    12:00:03 blessed
"""


def test_steps_own_lines_only() -> None:
    assert list(readable(PRINTED.splitlines(keepends=True))) == [
        ("prepare_data", ""),
        ("prepare_data", "12:00:01 1797 rows"),
        ("prepare_data", "  indented"),
        ("evaluate", ""),
        ("evaluate", "12:00:03 blessed"),
    ]
