"""Results to output: blocks of plain data, and the renderers that show them."""
