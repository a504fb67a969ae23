"""Damaged and forged files for everything that reads files.

    make fuzz SECONDS=600       # for as long as one likes
    make fuzz CASES=100000      # so many files for each format

`formats` says what is read, and what a reader may do with a file that somebody else has made; `mutations` makes such
files of good ones; `kept` has those that once broke something. The tests read a fixed number of them.
"""
