//! The operator.

pub mod apply;
pub mod selector_set;
