"""``python -m fastsgemm.torch [options] script.py args...`` runs a program with the switch on."""

from fastsgemm.torch.torch_command import main

main()
