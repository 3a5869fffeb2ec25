from pathlib import Path

import pytest
from ml_metadata import metadata_store
from ml_metadata.proto import metadata_store_pb2

from pipelines._results import last_run


def test_a_store_without_a_run_says_what_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.db")
    connection = metadata_store_pb2.ConnectionConfig()
    connection.sqlite.filename_uri = path
    connection.sqlite.connection_mode = 3  # READWRITE_OPENCREATE
    metadata_store.MetadataStore(connection).get_artifacts()

    with pytest.raises(LookupError, match=r"Expected a pipeline run in .*, found none. Run it"):
        last_run(path)
