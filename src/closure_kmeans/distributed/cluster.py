"""The Dask cluster: tasks are sent to it, and their results come back in the order of the tasks.

Tasks are pure functions of their arguments and of files that never change: if a worker is lost, with its results or in
the midst of a task, Dask has another one do the same again. Nothing is scattered, so nothing else can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from typing import Any

from tqdm.auto import tqdm

from closure_kmeans.distributed.files import PURPOSE, SharedFolder
from closure_kmeans.environment import environment
from closure_kmeans.files import library
from closure_kmeans.parallel import count_threads

# Seconds to wait for the first worker of a cluster.
PATIENCE = 60
# Results that are merged into one, at most.
MERGED_TOGETHER = 8
# Results that are fetched together, if they are there: small ones, which take little but the asking, and merged ones.
FETCHED_TOGETHER, MERGED_FETCHED_TOGETHER = 64, 4
# Dask has its workers give freed memory back at once: arrays of some megabytes, as tasks make and drop them all the
# time, would come from the system each time, and a task would take up to twice as long.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": 1 << 25, "MALLOC_TRIM_THRESHOLD_": 1 << 28}

Arguments = Sequence[tuple[Any, ...]]


class Cluster:
    """A client of a Dask cluster that runs tasks and returns results in the order of the tasks.

    The first argument of a task says what it works on, for people too.
    """

    def __init__(self, client: Any, verbose: int) -> None:
        self._client = client
        self._verbose = verbose

    def check_shared(self, folder: SharedFolder) -> None:
        """Raise if a worker does not see files that are written here; lost workers are ignored."""
        with folder.a_file() as name:
            seen = self._client.run(folder.has, name, on_error="ignore")
        blind = min((worker for worker, sees in seen.items() if not sees), default=None)
        if blind is not None:
            raise FileNotFoundError(
                f"storage must be a folder or URL that all workers share, but the worker {blind} does not find what "
                f"was written to '{folder}'"
            )

    def environment(self) -> dict[str, str]:
        """The ``environment`` here and on the workers; several values where they differ."""
        everywhere = [environment(), *self._client.run(environment, on_error="ignore").values()]
        return {name: " and ".join(sorted({one[name] for one in everywhere})) for name in everywhere[0]}

    def run(self, stage: str, task: Callable[..., Any], arguments: Arguments) -> Iterator[Any]:
        """Results of a task for each of some arguments, one after the other, with a bar that shows how far it is."""
        return self._watched(stage, arguments, self._submit(task, arguments))

    def run_delayed(self, stage: str, task: Callable[..., Any], firsts: list[Any], rest: Arguments) -> Iterator[Any]:
        """Like ``run``, where the first argument of each task is a delayed object of Dask."""
        delayed = library("dask", "dask", PURPOSE).delayed(task, pure=False)
        tasks = [delayed(first, *others) for first, others in zip(firsts, rest, strict=True)]
        return self._watched(stage, rest, self._client.compute(tasks))

    def merge(
        self,
        stage: str,
        task: Callable[..., Any],
        arguments: Arguments,
        merge: Callable[[list[Any]], Any],
        n_left: int,
    ) -> Iterator[Any]:
        """Results of a task, merged by other tasks into ``n_left`` to twice as many: a tree of merges in fixed order.

        They come one after the other, and are forgotten by the cluster as soon as they are here.
        """
        futures = self._submit(task, arguments)
        names = name_tasks(futures, arguments)
        for groups in plan_merges(len(futures), n_left):
            futures = self._submit(merge, [(futures[group],) for group in groups])
        yield from self._results(stage, names, futures, MERGED_FETCHED_TOGETHER)

    def _submit(self, task: Callable[..., Any], arguments: Arguments) -> list[Any]:
        return [self._client.submit(task, *some, pure=False) for some in arguments]

    def _watched(self, stage: str, arguments: Arguments, futures: list[Any]) -> Iterator[Any]:
        with tqdm(total=len(futures), desc=stage, disable=not self._verbose, leave=False) as bar:
            for result in self._results(stage, name_tasks(futures, arguments), futures, FETCHED_TOGETHER):
                yield result
                bar.update()

    def _results(self, stage: str, names: dict[str, str], futures: list[Any], together: int) -> Iterator[Any]:
        """Yield the results in order; cancel what is left if that ends early."""
        killed = library("distributed.scheduler", "dask", PURPOSE).KilledWorker
        waiting = futures[::-1]
        futures.clear()
        try:
            while waiting:
                there = takewhile(lambda future: future.status == "finished", waiting[: -together - 1 : -1])
                results = self._client.gather(list(there) or waiting[-1:])
                del waiting[-len(results) :]
                results.reverse()
                while results:
                    yield results.pop()
        except killed as error:
            raise ChildProcessError(
                f"{stage}: {names.get(error.task, error.task)} ended its worker {error.allowed_failures + 1} times, "
                "and is not run again. If memory ran out, increase n_partitions; see the logs of the workers"
            ) from error
        finally:
            if waiting:
                self._client.cancel(waiting)


def plan_merges(n_results: int, n_left: int) -> Iterator[list[slice]]:
    """Which neighbours are merged on each level of a tree, until halving them would leave too few."""
    while n_results >= 2 * n_left:
        n_groups = max(n_left, -(-n_results // MERGED_TOGETHER))
        yield [slice(i * n_results // n_groups, (i + 1) * n_results // n_groups) for i in range(n_groups)]
        n_results = n_groups


def name_tasks(futures: list[Any], arguments: Arguments) -> dict[str, str]:
    """Readable names of the tasks: their first arguments."""
    return {future.key: str(some[0]) for future, some in zip(futures, arguments, strict=True)}


def local_cluster(n_workers: int, **settings: Any) -> Any:
    """Workers on this machine, each a process of one thread, that nobody else can reach, and no dashboard."""
    distributed = library("distributed", "dask", PURPOSE)
    here = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    settings = {"threads_per_worker": 1, "scheduler_kwargs": {"dashboard": False}} | here | settings
    own = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in MALLOC.items()}
    no_pages: dict[str, Any] = {"distributed.scheduler.http.routes": []}  # nor plain ones
    with library("dask", "dask", PURPOSE).config.set(own | no_pages):
        return distributed.LocalCluster(n_workers=n_workers, **settings)


@contextmanager
def connect(client: Any, n_threads: int | None, verbose: int) -> Iterator[Cluster]:
    """A cluster: a client's, that at an address, or one of processes on this machine for as long as it is needed."""
    distributed = library("distributed", "dask", PURPOSE)
    with ExitStack() as stack:
        if client is None:
            own = stack.enter_context(local_cluster(count_threads(n_threads)))
            client = stack.enter_context(distributed.Client(own, set_as_default=False, direct_to_workers=True))
        elif not isinstance(client, distributed.Client):
            client = stack.enter_context(distributed.Client(client, set_as_default=False))
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError as error:
            address = client.scheduler.address
            raise TimeoutError(
                f"the cluster at {address} must have a worker, but none connected within {PATIENCE} s"
            ) from error
        yield Cluster(client, verbose)
