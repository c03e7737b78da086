"""``python -m fastsgemm.jax [options] script.py args...`` runs a program with the switch on."""

from fastsgemm.jax.jax_command import main

main()
