"""How attention is computed: the kernels there are, the choice among them, and the seam that applies it."""
