"""Fuzzing: everything in the library that reads files gets damaged and forged ones.

No such file may crash a reader, take much memory or time, change a network, or raise an error that does not name the
file. `formats` has good files of each format and what reads them, `mutations` damages them at random, `cases` reads one
damaged file and checks what happens, and `kept` has files that once broke something. The tests read a fixed number of
damaged files. To read more:

    make fuzz SECONDS=600       # for as long, all formats together
    make fuzz CASES=100000      # so many files of each format
"""
