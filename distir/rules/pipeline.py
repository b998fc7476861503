"""What replicas and the pipeline are given: samples, blocks, and a schedule."""

from __future__ import annotations

from distir.errors import DistirError
from distir.factoring import divisors, microbatch_counts
from distir.limits import MOST_MICROBATCHES
from distir.rules.facts import WorkloadFacts
from distir.rules.rule import Advice
from distir.schedules import ScheduleFamily, find_schedule

# --- samples --------------------------------------------------------------------------------------


def dp_divides_batch(workload: WorkloadFacts, dp: int) -> str | None:
    """Replicas get equal shares of the batch."""
    if workload.batch_size % dp == 0:
        return None
    return f"the batch ({workload.batch_size}) is not divisible by dp = {dp}"


def dp_to_try(workload: WorkloadFacts) -> Advice:
    """Degrees that divide the batch."""
    return {"dp": divisors(workload.batch_size)}


def microbatches_divide_share(workload: WorkloadFacts, dp: int, microbatches: int) -> str | None:
    """A replica's microbatches are equal. Where replicas' shares are not, `dp_divides_batch`
    answers."""
    share, uneven = divmod(workload.batch_size, dp)
    if uneven or share % microbatches == 0:
        return None
    return (
        f"each replica's share of the batch ({workload.batch_size} / {dp} = {share}) is not "
        f"divisible by microbatches = {microbatches}"
    )


def microbatches_to_try(workload: WorkloadFacts, dp: int) -> Advice:
    """Numbers that divide a replica's share."""
    return {"microbatches": microbatch_counts(workload.batch_size // dp)}


# --- blocks ---------------------------------------------------------------------------------------


def stages_have_blocks(workload: WorkloadFacts, pp: int, chunks: int) -> str | None:
    """A stage is a run of blocks, at least of one."""
    most, stages = workload.num_blocks, pp * chunks
    if stages <= most:
        return None
    asked = f"pp = {pp}" if chunks == 1 else f"pp x chunks = {pp} x {chunks}"
    return f"{asked} asks for {stages} stages, but the model has {most} blocks"


def stages_to_try(workload: WorkloadFacts, pp: int, chunks: int) -> Advice:
    """Ranks, or chunks, for at most as many stages as there are blocks."""
    most = workload.num_blocks
    fewer = {"chunks": range(1, most // pp + 1)} if chunks > 1 else {}
    return {"pp": range(1, most // chunks + 1), **fewer}


# --- schedules ------------------------------------------------------------------------------------


def schedule_is_known(workload: WorkloadFacts, schedule: str) -> str | None:
    """A schedule has this name, or is in the file at this path; if not, the reason lists the names
    that there are. Inference has one schedule, whatever is asked for."""
    found = _family(schedule) if workload.mode == "training" else None
    return found if isinstance(found, str) else None


def schedule_exists(
    workload: WorkloadFacts, pp: int, schedule: str, chunks: int, microbatches: int
) -> str | None:
    """A known schedule can be made for these numbers of ranks, chunks and microbatches."""
    found = _family(schedule) if workload.mode == "training" else None
    return found.requires(pp, chunks, microbatches) if isinstance(found, ScheduleFamily) else None


def _family(schedule: str) -> ScheduleFamily | str:
    """The schedule called so, or why there is none."""
    try:
        return find_schedule(schedule)
    except DistirError as error:
        return str(error)


def numbers_to_try(schedule: str, pp: int, microbatches: int) -> Advice:
    """The schedule's usual chunks, one rank more or less, or twice the microbatches."""
    return {
        "chunks": (find_schedule(schedule).default_chunks,),
        "pp": [ranks for ranks in (pp - 1, pp + 1) if ranks],
        "microbatches": [pieces for pieces in (2 * microbatches,) if pieces <= MOST_MICROBATCHES],
    }
