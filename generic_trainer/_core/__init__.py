"""Ground floor: modules that every room may import, and that import no room.

| module | subject |
|---|---|
| `cluster` | `TF_CONFIG`, which only this module reads and writes |
| `event_files` | the scalars in TensorBoard's event files |
| `files` | operations on every file system that TensorFlow knows |
| `forkserver` | processes forked from one that has imported TensorFlow already |
| `internals` | the private names of other libraries, each with its purpose |
| `keras` | Keras 2 or Keras 3 |
| `lazy` | public names that load on first use |
| `machine` | memory, processors, disk, GPUs and processes, within the control group |
| `output` | standard output and error, kept in a file |
| `output_copier` | the process that copies them |
| `progress` | progress of a run, written while it trains |
| `records` | TFRecord files |
| `scratch` | temporary folders, and locks between threads and between processes |
| `signals` | SIGTERM, recorded instead of obeyed |
| `texts` | JSON, YAML and protos that people write |
| `tfx_names` | names of TFX's inputs, outputs, properties and directories |
| `values` | Python values as JSON, and digests of them |
"""
