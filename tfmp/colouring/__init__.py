"""Program and op lists to the colour, and the reason, of every type attribute. Passes only read the graph."""
