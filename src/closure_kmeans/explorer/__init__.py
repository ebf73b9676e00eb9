"""The explorer: pages on the user's own machine to look at clusters, a fit and an index; a report; notebooks."""
