"""What the benches share; each file beside this folder is a command."""
