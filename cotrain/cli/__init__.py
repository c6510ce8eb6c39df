"""The commands of ``cotrain/cli/main.py``, by what they do: ``running.py`` makes runs, ``reading.py`` reads them."""
