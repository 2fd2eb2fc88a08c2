"""What is wrong with a node's network, and how to mend it: a table of checks over snapshots. Reads only."""
