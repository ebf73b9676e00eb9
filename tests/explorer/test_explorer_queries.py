"""Uploads that are kept."""

from closure_kmeans.explorer import queries


def test_old_photos_are_forgotten(searches, photos, monkeypatch):
    monkeypatch.setattr(queries, "MOST_UPLOADS", 3)
    kept = []
    for _ in range(5):
        upload = searches.new_upload("a.jpg")
        upload.path.write_bytes((photos / "flower0-0.jpg").read_bytes())
        searches.keep(upload)
        kept.append(upload)
    assert [searches.upload(upload.key) is not None for upload in kept] == [False, False, True, True, True]
    assert [upload.path.exists() for upload in kept] == [False, False, True, True, True]
