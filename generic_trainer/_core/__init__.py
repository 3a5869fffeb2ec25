"""Ground floor: what every room may import, and what imports no room.

| module | subject |
|---|---|
| `cluster` | `TF_CONFIG`, read and written in this one place |
| `event_files` | the scalars in TensorBoard's event files |
| `files` | operations on every file system that TensorFlow knows |
| `forkserver` | processes forked from one that has imported TensorFlow already |
| `internals` | the private names of other libraries, each with what it is needed for |
| `keras` | Keras 2 or Keras 3 |
| `lazy` | public names that load on first use |
| `locks` | one thread, or one process, at a time |
| `machine` | memory, processors, disk and GPUs, control groups considered |
| `output` | standard output and error, kept in a file |
| `output_copier` | the process that does so |
| `progress` | how a run is, written while it trains and read again |
| `protos` | protos that people write as text |
| `records` | TFRecord files |
| `signals` | SIGTERM, noted instead of obeyed |
| `texts` | JSON and YAML that people write |
| `tfx_names` | names of TFX's inputs, outputs, properties and directories |
| `values` | Python values as JSON, and digests of them |
"""
