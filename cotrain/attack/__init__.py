"""Attacks on a verifier: ``play.py`` makes them, ``tables.py`` counts what came of them."""
