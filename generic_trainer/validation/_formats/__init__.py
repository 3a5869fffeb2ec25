"""Models in other formats than SavedModel: what each holds, read without running any of it."""
