"""Several recipes over several seeds at equal cost (``compare``), and studies that are written down before
(``study``)."""
