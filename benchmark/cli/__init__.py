"""The command line `fssl`, the top layer and the only part of the library that imports sweeps and reports."""
