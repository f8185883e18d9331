"""One question per module; each has an ``ANALYZER`` constant."""
