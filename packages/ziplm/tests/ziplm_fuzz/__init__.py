"""Fuzzing: every loader of the five packages against damaged files, in child processes with limits.

`samples` writes good files, `loaders` says how each is loaded, `mutate` damages one file of a sample, and
`run` loads the damaged sample in a child process. The only good outcomes are success and our own errors.
"""
