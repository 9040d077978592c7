"""Where tfmp meets files: SavedModels and frozen graphs in, their 16-bit twins out."""
