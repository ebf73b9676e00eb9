"""Beyond one machine: what a fit on a cluster costs, and what it would cost at a billion rows."""
