from hypothesis import settings

# The first example of a kind waits for the compiler. The same examples every time, so that a failure repeats.
settings.register_profile("closure-kmeans", deadline=None, derandomize=True, database=None)
settings.load_profile("closure-kmeans")
