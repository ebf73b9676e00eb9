"""The history of a fit, of a model or of a checkpoint."""

import os
import time

from closure_kmeans import ClosureKMeans, load
from closure_kmeans.explorer.fit import fit_of_checkpoint, fit_of_model
from tests.explorer_data import make_rows


def test_the_fit_of_a_checkpoint(tmp_path):
    assert fit_of_checkpoint(tmp_path / "ck").state == "waiting"
    fitted = ClosureKMeans(n_clusters=10, random_state=0, checkpoint=tmp_path / "ck", checkpoint_every=0).fit(
        make_rows()
    )
    fit = fit_of_checkpoint(tmp_path / "ck")
    assert fit.history == fitted.history_
    assert (fit.state, fit.n_points) == ("converged", 300)
    assert fit.saved >= 0


def test_the_checkpoint_of_a_fit_that_runs_and_then_stops(tmp_path):
    seen = []

    def look(step):
        if step.iteration == 3:
            seen.append(fit_of_checkpoint(tmp_path).state)
            hours_ago = time.time() - 7200
            os.utime(tmp_path / "checkpoint.safetensors", (hours_ago, hours_ago))
            seen.append(fit_of_checkpoint(tmp_path).state)
            return True

    settings = {"tol": 0, "checkpoint": tmp_path, "checkpoint_every": 0, "callback": look}
    ClosureKMeans(n_clusters=10, random_state=0, **settings).fit(make_rows())
    assert seen == ["running", "silent"]
    assert fit_of_checkpoint(tmp_path).state == "stopped"
    ClosureKMeans(n_clusters=10, random_state=0, **settings | {"callback": None}).fit(make_rows(), resume=True)
    assert fit_of_checkpoint(tmp_path).state == "converged"


def test_the_fit_of_a_model(model, tmp_path):
    assert fit_of_model(model).history == model.history_
    model.save(tmp_path / "bare.safetensors")
    assert fit_of_model(load(tmp_path / "bare.safetensors")) is None
