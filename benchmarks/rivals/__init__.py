"""Against what users would pick instead: distortion over time, by one judge."""
