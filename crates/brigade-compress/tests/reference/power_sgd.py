"""Writes power_sgd.json: what PyTorch's powerSGD_hook makes of the gradients of two ranks, in three steps.

    OMP_NUM_THREADS=1 python power_sgd.py

The first two steps are ordinary all-reduces, as the hook demands; they are left out. `factor` is the right factor of each
matrix with which the third step begins, column by column.
"""

import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

SHAPES = [(6, 8), (5, 9), (4,)]
RANK = 2
STEPS = 5


def gradients(step, rank):
    torch.manual_seed(1000 * step + rank)
    return [torch.randn(shape) * (1 + i) for i, shape in enumerate(SHAPES)]


def run(rank, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29573")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    module = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES])
    model = torch.nn.Module()
    model.parameters_list = module
    model.forward = lambda given: sum((p * g).sum() for p, g in zip(model.parameters_list, given))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = power.PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=2, min_compression_rate=1
    )
    ddp.register_comm_hook(state, power.powerSGD_hook)
    factors = []
    original = power._orthogonalize

    def spy(matrices, epsilon=0):
        # The right factors come first in a step; those of the first compressed step are drawn.
        if len(factors) < 2:
            factors.extend(matrix.clone() for matrix in (matrices if matrices.dim() == 3 else matrices[None]))
        original(matrices, epsilon)

    power._orthogonalize = spy
    results = []
    for step in range(STEPS):
        ddp.zero_grad()
        ddp(gradients(step, rank)).backward()
        results.append([parameter.grad.flatten().tolist() for parameter in module])
    if rank == 0:
        wanted = {shape[1]: None for shape in SHAPES if len(shape) == 2}
        for factor in factors:
            wanted[factor.shape[0]] = factor.t().flatten().tolist()
        steps = [
            {
                "given": [[g.flatten().tolist() for g in gradients(step, r)] for r in range(2)],
                "mean": results[step],
            }
            for step in range(2, STEPS)
        ]
        document = {"rank": RANK, "shapes": SHAPES, "factor": list(wanted.values()), "steps": steps}
        with open(path, "w") as file:
            json.dump(document, file)
            file.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, (os.path.join(os.path.dirname(os.path.abspath(__file__)), "power_sgd.json"),), nprocs=2)
