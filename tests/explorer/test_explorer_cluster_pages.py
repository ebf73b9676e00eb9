"""Pages of clusters and items, as a person sees them."""

import io
import re

import numpy as np
import pyarrow
import pytest
from PIL import Image

from closure_kmeans import ClosureKMeans
from closure_kmeans.explorer.catalog import Catalog
from closure_kmeans.explorer.metadata import Metadata
from tests.explorer.browsing import only, seen
from tests.explorer_data import make_catalog, make_rows


def clusters_on(page):
    """The clusters that cards are headed with, each a link to its page."""
    links = [card.only("heading").only("link") for card in page.all("article")]
    assert [link.address for link in links] == [f"/clusters/{link.text}" for link in links]
    return [int(link.text) for link in links]


def items_in(element):
    """The items of which there are pictures that lead to their pages."""
    items = [int(image.name.removeprefix("thing ")) for image in element.all("img", re.compile("thing .*"))]
    links = [link for link in element.all("link") if link.pictures]
    assert [link.address for link in links] == [f"/items/{item}" for item in items]
    return items


def test_clusters_are_sorted_and_paged(client, catalog):
    largest = catalog.find("size", descending=True).tolist()
    assert client.get("/").status_code == 200
    first, second = seen(client, "/"), seen(client, "/?page=2")
    assert clusters_on(first) + clusters_on(second) == largest
    tightest = seen(client, "/?sort=spread&order=ascending")
    assert clusters_on(tightest) == catalog.find("spread", descending=False)[:20].tolist()
    found = catalog.find("size", descending=True, text="thing 7")[:20].tolist()
    assert clusters_on(seen(client, "/?q=thing 7")) == found
    nothing = seen(client, "/?q=nothing+of+the+kind")
    assert nothing.all("heading", "No cluster matches")
    assert clusters_on(nothing) == []


@pytest.mark.parametrize("show", ["random", "nearest", "farthest"])
def test_a_card_shows_items_of_its_cluster(client, catalog, show):
    page = seen(client, f"/?show={show}")
    for cluster, card in zip(clusters_on(page), page.all("article"), strict=True):
        assert items_in(card) == catalog.choose(cluster, show, 0, 20).tolist()


def test_a_bar_leads_to_its_clusters(client, catalog):
    bars = seen(client, "/").only("group", "Number of clusters by size").all("link")
    for bar in (bars[0], bars[-1]):
        count, least, most = re.fullmatch(r"(\d+) clusters? of (\d+)(?: to (\d+))? items", bar.name).groups()
        found = clusters_on(seen(client, "/" + bar.address))
        assert len(found) == int(count) > 0
        assert all(int(least) <= catalog.sizes[cluster] <= int(most or least) for cluster in found)


def test_a_cluster_shows_all_its_items(client, catalog):
    page = seen(client, "/clusters/3")
    members = catalog.members(3).tolist()
    assert items_in(page.only("region", f"{len(members)} items")) == members
    near = [row.all("link")[0] for row in page.only("region", "Neighbouring clusters").all("listitem")]
    neighbors = [neighbor.cluster for neighbor in catalog.neighbors([3], 8)[0]]
    assert [int(link.text.split()[0]) for link in near] == neighbors
    assert [link.address for link in near] == [f"/clusters/{neighbor}" for neighbor in neighbors]


def test_an_item_tells_where_it_stands(client, catalog):
    page = seen(client, "/items/42")
    standing = catalog.standing(42)
    assert page.facts["distance ratio"] == f"{standing.ratio:.3f}"
    assert page.facts["second nearest"].split()[0] == str(standing.second.cluster)
    second = page.only("region", "Position").only("link", str(standing.second.cluster))
    assert second.address == f"/clusters/{standing.second.cluster}"
    assert page.facts["title"] == page.all("img")[0].name == "thing 42"
    assert items_in(page.only("region", "Similar items")) == [item for item, _ in catalog.similar(42, 24)]


def test_the_map_has_every_cluster(client, catalog):
    table = np.frombuffer(client.get("/map.bin").content, "<f4").reshape(-1, 4)
    assert table[:, 2].tolist() == catalog.sizes.tolist()
    assert np.allclose(table[:, :2], catalog.positions)
    assert set(table[:, 3]) <= set(range(8))
    glance = seen(client, "/clusters/3/glance")
    assert "Cluster 3" in glance.text
    shown = {int(image.name.removeprefix("thing ")) for image in glance.all("img")}
    assert shown
    assert shown <= set(catalog.members(3))


def test_pictures_of_items(client):
    small, large = (client.get(f"/items/5/picture?size={size}") for size in ("small", "large"))
    assert Image.open(io.BytesIO(small.content)).size == (30, 20)
    assert large.headers["content-type"] == "image/jpeg"
    assert "immutable" in small.headers["cache-control"]


def test_vectors_without_images_are_drawn():
    client = only(catalog=make_catalog(pictures=False, metadata=False))
    assert client.get("/items/5/picture").headers["content-type"] == "image/svg+xml"
    assert client.get("/clusters/5/picture").headers["content-type"] == "image/svg+xml"
    drawn = seen(client, "/").all("article")[0].all("img", re.compile(r"item \d+"))
    assert drawn
    for image in drawn:
        number = image.name.removeprefix("item ")
        assert image.address.startswith(f"/items/{number}/picture?")


def test_metadata_without_images_are_read():
    client = only(catalog=make_catalog(pictures=False))
    for card in seen(client, "/").all("article"):
        assert card.pictures == []
        assert card.all("link", re.compile(r"thing \d+"))
        (typical,) = card.titled("the item nearest to the centre")
        assert re.fullmatch(r"thing \d+", typical.text)
        assert all(re.fullmatch(r"(red|green|blue) \d+ %", frequent.text) for frequent in card.all("listitem"))
        assert card.all("listitem")


def test_what_the_items_are_called_is_escaped():

    X = make_rows(30)
    model = ClosureKMeans(n_clusters=3, random_state=0).fit(X)
    known = Metadata.of_table(pyarrow.table({'"><i>': ["<script>x</script>"] * 30}), "x")
    client = only(catalog=Catalog(model, X, labels=model.labels_, metadata=known))
    for path in ("/", "/clusters/0", "/items/0", "/?q=<script>", "/clusters/0/glance"):
        text = client.get(path).text
        assert "<script>x" not in text
        assert '"><i>' not in text


def test_a_model_alone():
    model = make_catalog().model
    client = only(catalog=Catalog(model))
    assert "The items of this model are unknown." in seen(client, "/").text
    assert seen(client, "/clusters/1").all("heading", "Items unknown")
    assert client.get("/items/0").status_code == 404
