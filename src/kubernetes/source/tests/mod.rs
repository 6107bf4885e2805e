//! The source's behaviour, by what is told of: slices, readiness, records, sets, all of it in random order, and an apiserver that fails.

pub(in crate::kubernetes) mod apiserver;
mod edge;
mod random;
mod readiness;
mod records;
mod sets;
mod slices;
