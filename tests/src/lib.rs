//! What holds across rooms: the architecture test in `tests/`, and beside it the golden data of every crate's tests
//! (`golden`), the client that any SGLang-API server passes (`client`), the peers of the benchmarks (`bench`) and the
//! run that is killed and resumed (`chaos`).
