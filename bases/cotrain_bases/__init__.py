"""The models that ship with cotrain beside the one of its own wheel. ``cotrain/core/shipped.py`` finds them here."""
