"""Many functions as one program: which functions a root reaches, through which nodes, and on which device each one runs."""
