"""What is recorded of each iteration, and what ends a fit."""

import signal
from itertools import chain, count
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from methods import METHODS, every_flat_method, every_method, same
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from closure_kmeans import ClosureKMeans, Iteration, estimator, iteration, search
from closure_kmeans.baselines import ApproximateKMeans, approximate, canopy, flat, hierarchical
from closure_kmeans.datasets import load_sift
from closure_kmeans.stores import memory


@pytest.fixture(scope="module", name="X")
def sift():
    return load_sift()[:2000].astype(np.float32)


@pytest.fixture(scope="module", params=METHODS)
def fitted_by_any(X, request):
    return METHODS[request.param](random_state=0).fit(X)


def test_history(fitted_by_any, X):
    model = fitted_by_any
    assert all(isinstance(record, Iteration) for record in model.history_)
    columns = map(np.array, zip(*model.history_, strict=True))
    number, seconds, inertia, n_active, n_trees, n_candidates, accuracy = columns
    np.testing.assert_array_equal(number, np.arange(model.n_iter_) + 1)
    assert (np.diff(seconds, prepend=0) > 0).all()
    assert inertia[-1] == model.inertia_
    assert ((n_active >= 0) & (n_active <= 2000)).all()
    assert (n_trees == (8 if isinstance(model, ApproximateKMeans) else 0)).all()  # few clusters are all tested
    assert ((n_candidates > 1) & (n_candidates <= 2 * 50)).all()
    nearest, _ = reference.search_nearest(X, model.cluster_centers_)
    assert accuracy[-1] == pytest.approx(np.mean(nearest == model.labels_), abs=0.05)


@every_flat_method
def test_n_active_counts_the_rows_that_changed_their_cluster(X, make):
    start = np.arange(2000) % 50
    step = make(init=start, max_iter=1, random_state=0).fit(X)
    assert step.history_[0].n_active == np.count_nonzero(step.labels_ != start)


@every_flat_method
def test_one_iteration_from_given_centers_is_one_step(X, make):
    """The start's own assignment counts, as in scikit-learn."""
    centers = np.asarray(X[:50], np.float64)
    step = make(init=centers, max_iter=1, random_state=0).fit(X)
    nearest, _ = reference.search_nearest(X, centers)
    np.testing.assert_array_equal(step.labels_, nearest)
    means, _, _ = reference.update_clusters(X, np.ones(len(X)), nearest, centers)
    np.testing.assert_allclose(step.cluster_centers_, means, rtol=1e-5)
    assert (step.n_iter_, step.stopped_by_, len(step.history_)) == (1, "max_iter", 1)
    assert (step.history_[0].n_active, step.history_[0].n_candidates) == (len(X), 50)
    two = make(init=centers, max_iter=2, random_state=0).fit(X)
    assert two.n_iter_ == 2
    assert two.history_[0].inertia == step.inertia_ > two.inertia_


def test_a_callback_may_stop_after_the_start(X):
    seen = []
    model = ClosureKMeans(50, init=X[:50], callback=lambda record: seen.append(record) or True).fit(X)
    assert (model.stopped_by_, len(seen)) == ("callback", 1)


@every_flat_method
def test_max_iter_and_tol(X, make):
    model = make(max_iter=3, random_state=0).fit(X)
    assert (model.n_iter_, model.stopped_by_) == (3, "max_iter")
    model = make(tol=0.01, random_state=0).fit(X)
    falls = 1 - np.array([b.inertia / a.inertia for a, b in zip(model.history_, model.history_[1:], strict=False)])
    assert model.stopped_by_ == "converged"
    assert falls[-1] < 0.01 <= falls[:-1].min()


@every_method
def test_max_time(X, make):
    model = make(max_time=0).fit(X)
    assert (model.n_iter_, model.stopped_by_) == (1, "max_time")
    assert make(max_time=1e6).fit(X).stopped_by_ == "converged"


def test_max_time_does_not_take_the_set_up_for_an_iteration(X, monkeypatch):
    """The clock shows a set-up of 6 seconds and iterations of one."""
    times = chain([0.0], count(6.0))
    for module in (estimator, iteration):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    model = ClosureKMeans(50, max_time=9, tol=0).fit(X)
    assert [record.seconds for record in model.history_] == [6, 7, 8, 9]
    assert model.stopped_by_ == "max_time"


@every_method
def test_verbose_shows_progress(X, capsys, make):
    make(verbose=1, max_iter=2).fit(X)
    assert "distortion" in capsys.readouterr().err
    make(max_iter=2).fit(X)
    assert capsys.readouterr() == ("", "")


@every_method
def test_a_callback_sees_each_iteration_and_may_stop(X, make):
    seen = []

    def callback(record):
        seen.append(record)
        return len(seen) == 4

    model = make(callback=callback, random_state=0).fit(X)
    assert model.stopped_by_ == "callback"
    assert model.history_ == seen
    assert len(seen) == 4


@every_method
def test_an_error_in_a_callback_is_raised(X, make):
    def callback(record):
        raise ZeroDivisionError

    model = make(callback=callback)
    with pytest.raises(ZeroDivisionError):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def interrupt_after(n_calls, function):
    """The function, with the user's Ctrl-C at a certain call."""
    calls = iter(range(n_calls))

    def interrupted(*arguments):
        if next(calls, None) is None:
            signal.raise_signal(signal.SIGINT)
        return function(*arguments)

    return interrupted


# What assigns the points, for each method, and how often it is called before the first iteration.
ASSIGNMENTS = {
    "closures": (memory, "assign_by_closures", 0),
    "Lloyd": (flat, "nearest_centers", 0),
    "AKM": (approximate, "search_forest", 0),
    "RAKM": (approximate, "search_forest", 0),
    "canopies": (canopy, "centers_inside", 0),
    "HKM": (hierarchical, "assign_children", 1),
}


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("where", "n_done"), [("callback", 3), ("assignment", 2)])
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_leaves_the_best_state_so_far(X, monkeypatch, method, where, n_done, n_threads):
    model = METHODS[method](random_state=0, n_threads=n_threads)
    expected = clone(model).set_params(callback=lambda record: record.iteration == n_done).fit(X)
    if where == "callback":
        model.set_params(callback=interrupt_after(2, lambda record: None))
    else:
        module, name, n_before = ASSIGNMENTS[method]
        monkeypatch.setattr(module, name, interrupt_after(2 + n_before, getattr(module, name)))
    with pytest.raises(KeyboardInterrupt, match=f"^the model is that of iteration {n_done}$"):
        model.fit(X)
    assert model.stopped_by_ == "interrupted"
    assert model.n_iter_ == n_done
    assert same(model, expected)
    assert model.inertia_ == pytest.approx(reference.inertia(X, model.labels_))


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_in_the_first_iteration_leaves_nothing(X, monkeypatch, method):
    module, name, n_before = ASSIGNMENTS[method]
    monkeypatch.setattr(module, name, interrupt_after(n_before, getattr(module, name)))
    model = METHODS[method]()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_an_interrupt_before_there_is_a_state_leaves_nothing(X, monkeypatch):
    begin = memory.MemoryStore.begin
    monkeypatch.setattr(memory.MemoryStore, "begin", interrupt_after(0, begin))
    model = ClosureKMeans(50)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_an_interrupt_while_rows_without_weight_are_labelled_leaves_the_model_as_it_was(X, monkeypatch):
    model = ClosureKMeans(20, random_state=0).fit(X)
    before = dict(vars(model))
    monkeypatch.setattr(search, "nearest_of_all", interrupt_after(0, search.nearest_of_all))
    with pytest.raises(KeyboardInterrupt):
        model.set_params(n_clusters=10).fit(X, sample_weight=np.arange(len(X)) % 2)
    assert {name: value is before[name] for name, value in vars(model).items() if name.endswith("_")} == dict.fromkeys(
        [name for name in before if name.endswith("_")], True
    )
