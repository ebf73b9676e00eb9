"""The figures and tables of sections 3 and 4 of the paper, repeated: a file of parameters each, one command for all."""
