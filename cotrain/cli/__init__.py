"""The commands of ``cotrain/cli/main.py``, by what they do: ``run.py`` makes runs, ``inspect_runs.py`` reads them."""
