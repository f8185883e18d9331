"""The edge between bytes and :mod:`tracekit.core`."""
