"""The factory of the models that ship with cotrain; no part of the installed package."""
