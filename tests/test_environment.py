"""What determines the last bits of a result."""

from types import SimpleNamespace

from closure_kmeans import environment


def test_a_blas_that_another_package_has_loaded_does_not_matter(monkeypatch):
    own = environment.environment()
    libraries = environment.blas_libraries()

    def mkl(path):
        return SimpleNamespace(info=lambda: {"internal_api": "mkl", "version": "2024", "filepath": path})

    other = mkl("/lib/site-packages/torch/lib/libmkl.so")
    monkeypatch.setattr(environment, "blas_libraries", lambda: [*libraries, other])
    assert environment.environment() == own
    monkeypatch.setattr(environment, "blas_libraries", lambda: [mkl("/usr/lib/libmkl.so")])
    assert environment.environment() == own | {"BLAS": "mkl 2024"}
