"""Report pages, one module per analyzer; each has a ``PAGE`` constant."""
