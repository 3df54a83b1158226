"""Cases reported in public, by their ids in docs/cases.md: each with what makes a naive tool say the wrong thing."""

from __future__ import annotations

from dataclasses import replace

from desync.diagnosis import diagnose
from desync.model import Cause, MarkKind, Status, Trace

from .jobs import Op, job, left, mark, progress, raised, trace

LOOP = {"train.py": ((10, 20),)}


def blamed(evidence) -> set[int]:
    return {rank for finding in diagnose(evidence).findings for rank in finding.culprit_ranks}


def only(evidence):
    """The one finding."""
    (finding,) = diagnose(evidence).findings
    return finding


def turns(count: int, *turn: Op) -> list[Op]:
    return list(turn) * count


# --- loops that were left


def test_earlystop_barrier_sleapnn_471():
    """The last that all did together is a barrier, and it succeeded."""
    step, meet = Op(line=12), Op("barrier", line=18)
    stays = [trace(rank, [*turns(3, step, meet), replace(step, done=False)]) for rank in (1, 2, 3)]
    leaves = trace(0, [*turns(3, step, meet), Op("barrier", line=30, done=False)])
    finding = only(job(leaves, *stays, loops=LOOP))
    assert (finding.cause, finding.culprit_ranks) == (Cause.LEFT_LOOP_EARLY, (0,))
    assert finding.divergence.seq == 7


def test_earlystop_pl_379():
    """The rank that stopped has exited with status 0: no launcher shows a failure of it."""
    step = Op(line=12)
    stays = [trace(rank, [*turns(2, step), replace(step, done=False)]) for rank in (0, 1, 3)]
    stops = trace(2, [*turns(2, step), Op("destroy_process_group", line=40)], exit=left(4, 0))
    finding = only(job(*stays[:2], stops, stays[2], loops=LOOP))
    assert (finding.culprit_ranks, finding.status) == ((2,), Status.CRASH)
    assert finding.cause in (Cause.LEFT_LOOP_EARLY, Cause.EXITED_EARLY)


def test_uneven_lance_fragments():
    """Nine good epochs, and of the tenth one rank has less; only the innocent one of the two has anything to say."""
    step = Op(line=12)
    passes = (30,) * 9
    last = (mark(MarkKind.FETCH, 20, value=24),)
    ended = (mark(MarkKind.FETCH, 18, value=22), mark(MarkKind.EXHAUSTED, 19, value=22))
    waits = trace(
        0, [*turns(20, step), replace(step, done=False)], world=2, marks=last, progress=progress(batches=294, passes=passes)
    )
    short = trace(
        1,
        [*turns(20, step), Op("barrier", line=30, done=False)],
        world=2,
        marks=ended,
        progress=progress(batches=292, passes=(*passes, 22), loader_exhausted=True),
    )
    finding = only(job(waits, short, loops=LOOP))
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNEVEN_INPUTS, (1,))
    assert "pass 10" in finding.summary


def test_uneven_primerl_2516():
    """In an evaluation: no gradient, no backward, and the collective hides in forward()."""
    gather = Op("all_gather_into_tensor", line=12)

    def fetched(count: int, over: bool) -> dict[str, object]:
        marks = tuple(mark(MarkKind.FETCH, number, value=number + 1) for number in range(count))
        if over:
            marks = (*marks, mark(MarkKind.EXHAUSTED, count, value=count))
        return {"marks": marks, "progress": progress(batches=count, passes=(count,) if over else (), loader_exhausted=over)}

    more = [trace(rank, [*turns(3, gather), replace(gather, done=False)], **fetched(4, False)) for rank in (0, 1, 2)]
    less = trace(3, [*turns(3, gather), Op(line=40, elements=1, done=False)], **fetched(3, True))
    finding = only(job(*more, less, loops=LOOP))
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNEVEN_INPUTS, (3,))


# --- calls that some make and others do not


def test_keys_pl_19106():
    """The rank with fewer keys is ahead, in the broadcast behind the loop over them."""
    key = Op("barrier", line=12)
    more = [trace(rank, [*turns(2, key), replace(key, done=False)]) for rank in (0, 2, 3)]
    fewer = trace(1, [*turns(2, key), Op("broadcast", line=25, root=0, done=False)])
    assert only(job(more[0], fewer, *more[1:], loops={"train.py": ((11, 13),)})).culprit_ranks == (1,)


def test_ckpt_besthigh_fsdp_77562():
    """Who took the branch of the best loss is in its collective; the others are in the next epoch."""
    step = Op(line=12)
    next_epoch = [trace(rank, [*turns(3, step), replace(step, done=False)]) for rank in (1, 2, 3)]
    saves = trace(0, [*turns(3, step), Op("all_gather", line=33, done=False)])
    assert only(job(saves, *next_epoch)).culprit_ranks == (0,)


def test_ckpt_exists_kempner_49():
    """The source of a broadcast has sent it and is ahead, which is no fault; who did not find the file left it out."""
    step, send = Op(line=12), Op("broadcast", line=20, root=0)
    meet = Op("barrier", line=30)
    source = trace(0, [step, send, replace(meet, done=False)])
    loads = [trace(rank, [step, send, replace(meet, done=False)]) for rank in (2, 3)]
    skips = trace(1, [step, replace(meet, done=False)])
    finding = only(job(source, skips, *loads))
    assert (finding.culprit_ranks, finding.divergence.seq) == ((1,), 2)
    assert finding.cause in (Cause.SKIPPED_COLLECTIVE, Cause.RANK_ONLY_COLLECTIVE)


def test_rank_decision_sglang_33289():
    """Two ranks, each with its own clock, in different calls: both readings, and nobody is made the culprit."""
    one = trace(0, [Op(line=12), Op("all_gather", line=14, done=False)], world=2)
    other = trace(1, [Op(line=12), Op("broadcast", line=11, root=0, done=False)], world=2)
    finding = only(job(one, other))
    assert finding.culprit_ranks == ()
    assert "train.py:14" in finding.summary
    assert "train.py:11" in finding.summary


def test_compile_guard_155558():
    """The extra collective is the compiler's: no line of the user made it."""
    step = Op(line=12)
    runs = [trace(rank, [step, step, replace(step, done=False)]) for rank in (0, 1)]
    compiles = _without_lines(trace(2, [step, step, Op("all_gather", line=99, done=False)]), 99)
    assert only(job(*runs, compiles)).culprit_ranks == (2,)


def _without_lines(made: Trace, line: int) -> Trace:
    calls = made.operations.calls
    bare = tuple(replace(call, site=None) if call.site.innermost.line == line else call for call in calls)
    return replace(made, operations=replace(made.operations, calls=bare))


# --- calls left out


def test_multimodal_msswift_10183():
    """Who left a backward out is in the next forward's buffers, and the source of these is not at fault for waiting."""
    buffers = Op("broadcast", line=12, root=0)
    bucket = Op(line=14, bucket="DDP bucket 0: weight", is_async=True, done=False)

    def steps(batches: int, backwards: int) -> dict[str, object]:
        marks = tuple(mark(MarkKind.FETCH, number, value=number + 1) for number in range(batches))
        return {"marks": marks, "progress": progress(batches=batches, forwards=batches, backwards=backwards)}

    waits = [trace(rank, [buffers, bucket], **steps(1, 1)) for rank in (0, 2)]
    ahead = trace(1, [buffers, replace(buffers, done=False)], **steps(2, 0))
    finding = only(job(waits[0], ahead, waits[1]))
    assert finding.culprit_ranks == (1,)
    assert finding.cause in (Cause.SKIPPED_COLLECTIVE, Cause.RANK_ONLY_COLLECTIVE)


def test_moe_z3_deepspeed_4808():
    """Experts are alike: what is left out for one is silently paired with the next one's, and the count differs at the end."""
    expert, total = Op("all_gather_into_tensor", line=12), Op(line=30, elements=1)
    # The seven that it calls are paired with the first seven of eight; it is in the sum when the others are in the eighth.
    waits = [trace(rank, [*turns(7, expert), replace(expert, done=False)]) for rank in (0, 1, 3)]
    skips = trace(2, [*turns(7, expert), replace(total, done=False)])
    assert only(job(*waits[:2], skips, waits[2])).culprit_ranks == (2,)


def test_dummy_loss_msswift_8102():
    """All are in loss.backward() at one line; one of them has called less there."""
    gather = Op("all_gather_into_tensor", line=14)
    fewer = trace(1, [*turns(3, gather), Op(line=16, done=False)])
    waits = [trace(rank, [*turns(3, gather), replace(gather, done=False)]) for rank in (0, 2)]
    assert only(job(waits[0], fewer, waits[1])).culprit_ranks == (1,)


def test_mismatch_microbatch_verl_5591():
    """The quick one waits in another collective; the numbers of the two sides' newest calls say nothing."""
    micro, norm = Op("all_gather_into_tensor", line=12), Op(line=30, elements=1)
    for more in (False, True):
        others = [trace(rank, [*turns(3, micro), replace(micro, done=False)]) for rank in (0, 2, 3)]
        odd = trace(1, [*turns(3, micro), replace(norm, done=False)])
        if more:
            others = [trace(rank, [*turns(3, micro), replace(norm, done=False)]) for rank in (0, 2, 3)]
            odd = trace(1, [*turns(3, micro), replace(micro, done=False)])
        assert only(job(others[0], odd, *others[1:], loops={"train.py": ((11, 13),)})).culprit_ranks == (1,)


def test_syncbn_clmvsnet_14():
    """All others are far beyond the call that is stuck, in a burst of asynchronous ones: the oldest open one counts."""
    layer = Op("all_gather", line=12, is_async=True, done=False)
    ahead = [trace(rank, [Op(line=10), *turns(31, layer)]) for rank in (0, 1, 3)]
    absent = trace(2, [Op(line=10)])
    finding = only(job(*ahead[:2], absent, ahead[2], frozen=(2,)))
    assert (finding.culprit_ranks, finding.divergence.seq) == ((2,), 2)


# --- groups


SIDE = {"default_pg": tuple(range(8)), "side": tuple(range(8))}


def test_crosspg_coordexp_2v6():
    """Each group alone shows a plain absence: of six in one, of two in the other.  The six are not at fault for sure."""
    step = Op("broadcast", line=12, root=0)
    two = [trace(rank, [step, Op("all_gather", group="side", line=40, done=False)], world=8, groups=SIDE) for rank in (0, 4)]
    six = [trace(rank, [step, replace(step, done=False)], world=8, groups=SIDE) for rank in (1, 2, 3, 5, 6, 7)]
    finding = only(job(two[0], *six[:3], two[1], *six[3:]))
    assert set(finding.culprit_ranks) <= {0, 4}
    assert {rank for rank in range(8) if finding.divergence.by_rank.get(rank)} == set(range(8))


def test_crosspg_torchrec_4149():
    """Two of eight use the two groups in the other order: a circle, not two stories of missing ranks."""
    groups = {"replicate": tuple(range(8)), "shard": tuple(range(8))}
    two = [trace(rank, [Op(group="replicate", line=11, done=False)], world=8, groups=groups) for rank in (6, 7)]
    rest = [trace(rank, [Op(group="shard", line=12, done=False)], world=8, groups=groups) for rank in range(6)]
    finding = only(job(*rest, *two))
    assert finding.cause is Cause.GROUP_ORDER_CYCLE
    assert set(finding.culprit_ranks) <= {6, 7}
    assert any("train.py:11" in line for line in finding.evidence)
    assert any("train.py:12" in line for line in finding.evidence)


def test_ep_dp_primerl_3186():
    """Rank 13 waits in its small group for 15, which waits in the large one for 3: only 3 is looked at."""
    groups = {"default_pg": tuple(range(16)), "experts": (12, 13, 14, 15)}
    small = [
        trace(rank, [Op(), Op("all_to_all_single", group="experts", line=40, done=False)], world=16, groups=groups)
        for rank in (12, 13, 14)
    ]
    large = [trace(rank, [Op(), Op(done=False)], world=16, groups=groups) for rank in range(12) if rank != 3]
    last = trace(15, [Op(), Op(done=False)], world=16, groups=groups)
    absent = trace(3, [Op()], world=16, groups=groups)
    seen = job(*large[:3], absent, *large[3:], *small, last, frozen=(3,))
    assert blamed(seen) == {3}


def test_newgroup_cornstarch_76():
    """No tensor has been sent yet: the ranks are in new_group, each for other members."""
    made = Op("new_group", line=8)
    skips = trace(0, [made, Op("new_group", line=9, done=False)], world=3)
    others = [trace(rank, [made, Op("new_group", line=9, done=False)], world=3) for rank in (1, 2)]
    skips = _members(skips, {9: (1, 2)})
    others = [_members(each, {9: (0,)}) for each in others]
    finding = only(job(skips, *others))
    assert finding.cause is Cause.GROUP_CREATION
    assert finding.culprit_ranks in ((0,), ())


def _members(made: Trace, members: dict[int, tuple[int, ...]]) -> Trace:
    calls = made.operations.calls
    named = tuple(replace(call, members=members.get(call.site.innermost.line, (0, 1, 2))) for call in calls)
    return replace(made, operations=replace(made.operations, calls=named))


# --- arguments


def test_multimodal_msswift_9443():
    """A gradient bucket of another size: no line of the user called it, and only one rank's order is another."""
    first = Op(line=14, bucket="DDP bucket 0: text", is_async=True, elements=195_812_480, done=False)
    other = replace(first, bucket="DDP bucket 1: vision", elements=51_123_456)
    assert blamed(job(trace(0, [other]), *(trace(rank, [first]) for rank in (1, 2, 3)))) == {0}
    assert blamed(job(trace(0, [other], world=2), trace(1, [first], world=2))) == set()


def test_shape_opendde_23():
    """Half of a subgroup has one column more: two against two is no majority, and the group's numbers are no ranks."""
    groups = {"default_pg": tuple(range(8)), "cp": (4, 5, 6, 7)}
    gather = Op("all_gather_into_tensor", group="cp", line=12, elements=1435, done=False)
    cp = [trace(rank, [replace(gather, elements=1435 + rank // 6)], world=8, groups=groups) for rank in (4, 5, 6, 7)]
    rest = [trace(rank, [Op(done=False)], world=8, groups=groups) for rank in range(4)]
    finding = next(found for found in diagnose(job(*rest, *cp)).findings if found.cause is Cause.ARGUMENT_MISMATCH)
    assert finding.culprit_ranks == ()
    assert "ranks 4-5" in finding.summary.lower()
    assert "1436" in finding.summary


# --- ends


def test_async_isend_exit_75512():
    """The error is the receiver's; the sender left with status 0 before its data did."""
    sends = trace(0, [Op("send", peer=1, line=12, done=False)], world=2, exit=left(1, 0))
    lost = raised("Connection closed by peer [127.0.0.1]", 1, kind="RuntimeError")
    receives = trace(1, [Op("recv", peer=0, line=14, done=False, failed=True)], world=2, marks=(lost,), exit=left(3, 1))
    assert blamed(job(sends, receives, ended=True)) <= {0}


def test_params_diffusers_10160():
    """What is said of rank 0's model is what a gathering leaves that failed; its own exception came first."""
    gathered = Op("all_gather", line=10)
    guilty = trace(0, [], marks=(raised("no such checkpoint", 0, kind="OSError"),), exit=left(1, 1))
    words = "DDP expects same model across all ranks, but Rank {} has 4 params, while rank 0 has inconsistent 0 params."
    marks = {rank: (raised(words.format(rank), 1, kind="RuntimeError"),) for rank in (1, 2, 3)}
    failed = replace(gathered, failed=True, done=False)
    refused = [trace(rank, [failed], marks=marks[rank], exit=left(3, 1)) for rank in marks]
    assert blamed(job(guilty, *refused, ended=True)) == {0}


def test_unused_ckpt_accelerate_2017():
    """All ranks raise the same at the same place: an exception, and no rank that is out of step."""
    twice = "Expected to mark a variable ready only once. Parameter at index 3 has been marked as ready twice."
    ranks = [trace(rank, [Op()], marks=(raised(twice, 1, kind="RuntimeError"),), exit=left(2, 1)) for rank in range(4)]
    finding = only(job(*ranks, ended=True))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.EXCEPTION, (0, 1, 2, 3))


def test_oom_skip_44353_and_oom_composer_1319():
    """Memory that ran out and was caught: the rank looks healthy and is ahead, in the next attempt or the next step."""
    bucket = Op(line=14, bucket="DDP bucket 0: weight", is_async=True, done=False)
    out = raised("CUDA out of memory. Tried to allocate 2.00 GiB", 1, kind="OutOfMemoryError", uncaught=False, oom=True)
    waits = [trace(rank, [Op(line=12), bucket]) for rank in (0, 2)]
    ahead = trace(1, [Op(line=12), Op("barrier", line=30, done=False)], marks=(out,))
    finding = only(job(waits[0], ahead, waits[1]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.OUT_OF_MEMORY, (1,))


# --- slow, stalled, and nobody's fault


def test_straggler_nemorl_2462():
    """Two ranks are late, with different delays; those that would time out are the healthy ones."""
    waits = [trace(rank, [Op(), Op("all_gather", line=30, elements=1, done=False)], world=8) for rank in range(8)]
    late = [trace(rank, [Op()], world=8) for rank in (1, 5)]
    ranks = [late[rank // 5] if rank in (1, 5) else waits[rank] for rank in range(8)]
    finding = only(job(*ranks, moving=(1, 5)))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.SLOW, Cause.SLOW_RANK, (1, 5))


def test_mbarrier_map_deepspeed_4488_and_save_openrlhf_1126():
    """Rank 0 still works (a map over the data, a checkpoint); the others have given up waiting, and point at each other."""
    gave_up = raised("Rank 0 failed to pass monitoredBarrier in 1800000 ms", 2, kind="RuntimeError")
    for op, marks in (("monitored_barrier", (gave_up,)), ("barrier", ())):
        meet = Op(op, line=30, done=False, failed=bool(marks))
        waits = [trace(rank, [Op(), meet], marks=marks) for rank in (1, 2, 3)]
        finding = only(job(trace(0, [Op()]), *waits, moving=(0,)))
        assert (finding.cause, finding.culprit_ranks) == (Cause.SLOW_RANK, (0,))


def test_tp_late_torchinferno():
    """One of eight never came, and stands still: what it prints of others is not asked."""
    came = [trace(rank, [Op(), Op(line=30, done=False)], world=8) for rank in range(7)]
    finding = only(job(*came, trace(7, [Op()], world=8), frozen=(7,)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (7,))


def test_p2p_vllm_174288():
    """Every send has its recv and none completes: nobody is wrong."""
    one = trace(0, [Op("send", peer=1, line=12, done=False)], world=2)
    other = trace(1, [Op("recv", peer=0, line=14, done=False)], world=2)
    diagnosis = diagnose(job(one, other, frozen=(0, 1)))
    assert {rank for finding in diagnosis.findings for rank in finding.culprit_ranks} == set()
    assert diagnosis.findings == () or diagnosis.findings[0].cause is Cause.COMMUNICATION_STALLED


def test_libbug_nanogpt_152623_and_barrier_first_device_124714():
    """All are in the same call, and it does not finish: "rank 7 stopped after #182" is true, and rank 7 is not at fault."""
    ranks = [trace(rank, [*turns(181, Op()), Op("barrier", line=12, done=False)], world=8) for rank in range(8)]
    finding = only(job(*ranks))
    assert (finding.cause, finding.culprit_ranks) == (Cause.COMMUNICATION_STALLED, ())
