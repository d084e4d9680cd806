"""The admin API: what a running volume is asked and told over its control socket, and how a path leads to it.

Owns the messages, the server that runs in the mount process, the client of the command line, and finding the volume
that a path belongs to. It decides nothing about files: the volume does. It must not print.
"""
