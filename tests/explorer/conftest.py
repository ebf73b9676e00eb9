"""Clusters, an index and a client of both: made once, read by all tests."""

import pytest
from starlette.testclient import TestClient

from closure_kmeans import ClosureKMeans
from closure_kmeans.explorer.app import make_app
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.fit import fit_of_model
from closure_kmeans.explorer.queries import Searches
from tests.explorer.browsing import HERE
from tests.explorer_data import make_catalog, make_index, make_rows, write_photos


@pytest.fixture(scope="session")
def catalog():
    return make_catalog()


@pytest.fixture(scope="session")
def model():
    return ClosureKMeans(n_clusters=10, random_state=0, n_threads=1).fit(make_rows())


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder)
    return folder


@pytest.fixture(scope="session")
def searches(photos, tmp_path_factory):
    return Searches(make_index(photos), "photos.index", tmp_path_factory.mktemp("uploads"))


@pytest.fixture(scope="session")
def client(catalog, searches):
    fit = fit_of_model(catalog.model)
    return TestClient(make_app(catalog, searches, lambda: fit), base_url=HERE)


def apps(catalog, searches):
    """All that an explorer can be given: everything, one thing, nothing."""
    fit = fit_of_model(catalog.model)
    yield make_app(catalog, searches, lambda: fit)
    yield make_app(catalog)
    yield make_app(Catalog(catalog.model))
    yield make_app(searches=searches)
    yield make_app()


@pytest.fixture(scope="session")
def clients(catalog, searches):
    return [TestClient(app, base_url=HERE) for app in apps(catalog, searches)]
