"""The runner: starts ranks, records them and the conditions; knows no model."""
