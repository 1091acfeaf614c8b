"""Regimes: sets of states in which a stream stays, found in time where the density of its values has no valley.

A client cuts its stream into blocks of 1, 2, 4 ... 256 readings and describes each block by features. What leaves it
are sums over its blocks. From these the server finds, at each of these scales, the coordinates in which blocks change
slowly, cells of a codebook in them, and sets of cells between which changes are rare; the scale that tells most about
the next block decides. The number of regimes is not told, and is one where nothing stays.
"""
