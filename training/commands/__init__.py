"""The commands of ``rlvr-world``, one module each. Importing them is light; each imports what it needs when it
runs.
"""
