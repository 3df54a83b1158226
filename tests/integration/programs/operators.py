"""Calls every kind of operation once; the comments at the ends of the lines name them for the test."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel


def vector(elements: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(elements, dtype=dtype)


def collectives(rank: int) -> None:
    dist.all_reduce(vector())  # @all_reduce
    dist.all_reduce(vector(5, torch.int64), op=dist.ReduceOp.MAX)  # @all_reduce_max
    dist.all_reduce(vector(dtype=torch.float64), op=dist.ReduceOp.PRODUCT)  # @all_reduce_product
    work = dist.all_reduce(vector(6), async_op=True)  # @all_reduce_async
    work.wait()
    dist.broadcast(vector(7), src=1)  # @broadcast
    dist.broadcast(vector(7), src=0, async_op=True).wait()  # @broadcast_async
    dist.reduce(vector(3), dst=1, op=dist.ReduceOp.MIN)  # @reduce
    dist.all_gather([vector(2), vector(2)], vector(2))  # @all_gather
    dist.all_gather_into_tensor(vector(8), vector(4))  # @all_gather_into_tensor
    dist.reduce_scatter(vector(2), [vector(2), vector(2)])  # @reduce_scatter
    dist.reduce_scatter_tensor(vector(3), vector(6), op=dist.ReduceOp.SUM)  # @reduce_scatter_tensor
    dist.gather(vector(2), [vector(2), vector(2)] if rank == 1 else None, dst=1)  # @gather
    dist.scatter(vector(2), [vector(2), vector(2)] if rank == 1 else None, src=1)  # @scatter
    dist.all_to_all_single(vector(4), vector(4))  # @all_to_all_single
    received = vector(3 if rank == 0 else 5)
    splits = ([1, 2], [1, 3]) if rank == 0 else ([3, 2], [2, 2])
    dist.all_to_all_single(received, vector(4), *splits)  # @all_to_all_splits
    dist.all_to_all([vector(2), vector(2)], [vector(2), vector(2)])  # @all_to_all
    dist.barrier()  # @barrier
    dist.barrier(async_op=True).wait()  # @barrier_async
    dist.monitored_barrier(timeout=timedelta(seconds=60))  # @monitored_barrier


def coalesced() -> None:
    dist.all_reduce_coalesced([vector(2), vector(3)])  # @all_reduce_coalesced
    dist.all_gather_coalesced([[vector(2)], [vector(2)]], [vector(2)])  # @all_gather_coalesced
    with dist._coalescing_manager():  # @coalescing_manager
        dist.all_reduce(vector(9))
        dist.all_reduce(vector(10))


def point_to_point(rank: int) -> None:
    other = 1 - rank
    if rank == 0:
        dist.send(vector(2), dst=1, tag=5)  # @send
        dist.isend(vector(3), dst=1).wait()  # @isend
        dist.recv(vector(4), src=None)  # @recv_any
    else:
        dist.recv(vector(2), src=0, tag=5)  # @recv
        dist.irecv(vector(3), src=0).wait()  # @irecv
        dist.send(vector(4), dst=0)  # @send_back
    pair = [dist.P2POp(dist.isend, vector(6), other), dist.P2POp(dist.irecv, vector(6), other)]
    for work in dist.batch_isend_irecv(pair):  # @batch
        work.wait()
    if rank == 0:
        dist.send_object_list(["x"], dst=1)  # @send_object
    else:
        dist.recv_object_list([None], src=0)  # @recv_object


def objects(rank: int) -> None:
    dist.all_gather_object([None, None], {"rank": rank})  # @all_gather_object
    dist.broadcast_object_list([rank], src=1)  # @broadcast_object
    dist.gather_object(rank, [None, None] if rank == 1 else None, dst=1)  # @gather_object
    dist.scatter_object_list([None], [1, 2] if rank == 1 else None, src=1)  # @scatter_object


def functionals(group: dist.ProcessGroup) -> None:
    functional.all_reduce(vector(11), "sum", group).sum().item()  # @functional_all_reduce
    functional.all_gather_tensor(vector(2), 0, group).sum().item()  # @functional_all_gather
    functional.reduce_scatter_tensor(vector(4), "sum", 0, group).sum().item()  # @functional_reduce_scatter
    functional.all_to_all_single(vector(4), None, None, group).sum().item()  # @functional_all_to_all
    functional.broadcast(vector(3), 1, group).sum().item()  # @functional_broadcast


@torch.compile(backend="eager", fullgraph=True)
def compiled_eager(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor * 2
    dist.all_reduce(tensor)  # @compiled_eager
    return tensor + 1


@torch.compile(backend="aot_eager", fullgraph=True)
def compiled_aot(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    return functional.all_reduce(tensor * 2, "max", group) + 1  # @compiled_aot


def modes() -> None:
    with torch.no_grad():
        dist.all_reduce(vector(12))  # @no_grad
    with torch.inference_mode():
        dist.all_reduce(vector(13))  # @inference_mode


def subgroups(rank: int) -> None:
    reversed_ = dist.new_group([1, 0], sort_ranks=False) if rank < 2 else None  # @new_group_reversed
    dist.broadcast(vector(14), src=1, group=reversed_)  # @subgroup_broadcast
    alone = [dist.new_group([one]) for one in range(2)][rank]  # @new_group_alone
    dist.all_reduce(vector(15), group=alone)  # @subgroup_alone
    if rank == 0:
        dist.send(vector(16), dst=1, group=reversed_)  # @subgroup_send
    else:
        dist.recv(vector(16), src=0, group=reversed_)  # @subgroup_recv
    dist.destroy_process_group(reversed_)  # @destroy_subgroup


def other_thread(group: dist.ProcessGroup) -> None:
    def work() -> None:
        dist.all_reduce(vector(17), group=group)  # @thread

    thread = threading.Thread(target=work)
    thread.start()
    dist.all_reduce(vector(18))  # @beside_thread
    thread.join()


def reducer() -> None:
    model = DistributedDataParallel(torch.nn.Linear(3, 2))  # @ddp
    model(torch.ones(1, 3)).sum().backward()  # @ddp_backward


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # @init
    rank = dist.get_rank()
    group = dist.new_group([0, 1], group_desc="second thread")  # @new_group
    collectives(rank)
    coalesced()
    point_to_point(rank)
    objects(rank)
    functionals(dist.group.WORLD)
    compiled_eager(vector(19))
    compiled_aot(vector(20), dist.group.WORLD).sum().item()
    modes()
    subgroups(rank)
    other_thread(group)
    reducer()
    dist.destroy_process_group()  # @destroy


if __name__ == "__main__":
    main()
