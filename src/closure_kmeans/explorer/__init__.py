"""Explorer: local web pages for clusters, fits and indexes; HTML report; notebook output."""
