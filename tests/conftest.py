"""What holds for all tests."""

from hypothesis import settings

# Speed is measured in benchmarks/, never asserted by a test: a busy machine must not fail one.
settings.register_profile("reput", deadline=None)
settings.load_profile("reput")
