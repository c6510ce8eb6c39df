"""The commands of ``cotrain/cli.py``, by what they do: ``running.py`` makes runs, ``reading.py`` reads them."""
