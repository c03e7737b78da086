"""Ask why a problem gets its config; on a GPU, search a better one and ask again."""

import fastsgemm
from fastsgemm import device

PROBLEM = (1000, 1000, 1000, "TN")

# Shipped records and the cost model answer for any device, also for one that is not here.
found = fastsgemm.explain(*PROBLEM, device="NVIDIA H200")
print(found, end="\n\n")
assert found.choice.rule in ("exact", "predicted", "nearest")

unknown = fastsgemm.explain(*PROBLEM, device="NVIDIA GeForce RTX 4090")
print(unknown, end="\n\n")

if device.host_backend() == "cuda":
    print(fastsgemm.tune(["1000,1000,1000,TN"], budget=20.0))
    print(fastsgemm.explain(*PROBLEM))
else:
    print("not tuned: this needs a GPU")
