"""The zoo: methods for cotrain that no measured result needs yet. They are written and run as those of cotrain are.

An entry point brings each to ``cotrain list`` and ``cotrain run``; Python takes it from the module of its name, as in
``from cotrain_zoo.gar import gar``.
"""
