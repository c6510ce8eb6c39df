"""``cotrain serve``: the roles of a run behind an OpenAI-compatible server. Begin reading in ``app.py``."""
