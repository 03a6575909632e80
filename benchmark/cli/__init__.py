"""The command line `fssl`, on top of everything: the only part of the library that knows sweeps and reports."""
